"""``treepipe worker``: this host's part in runs that a coordinator on another one starts."""

from __future__ import annotations

import contextlib
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from treepipe.core.errors import UserError
from treepipe.extras import need_executor

Listen = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="Serve coordinators at this address."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key", help="The key that coordinators hold, too; not needed on the loopback."),
]
Models = Annotated[
    Path | None,
    typer.Option("--models", help="Folder that holds this host's checkpoints by their names."),
]
MakeKey = Annotated[
    Path | None,
    typer.Option("--make-key", help="Write a new key to this file, and end."),
]
StatusOf = Annotated[
    str | None,
    typer.Option("--status", metavar="HOST:PORT", help="Show what the worker there is at."),
]


def worker(
    listen: Listen = None,
    key: KeyFile = None,
    models: Models = None,
    make_key: MakeKey = None,
    status: StatusOf = None,
) -> None:
    """Serve as a worker on this host, for one coordinator at a time."""
    need_executor("treepipe worker")
    given = [name for name, value in _asked(listen, make_key, status).items() if value is not None]
    if len(given) != 1:
        raise UserError("treepipe worker takes one of --listen, --make-key and --status")
    for name, value in (("--models", models), ("--key", key)):
        if value is not None and not (listen is not None or (status is not None and value is key)):
            raise UserError(f"treepipe worker {given[0]} takes no {name}")
    if models is not None and not models.is_dir():
        raise UserError(f"--models {models}: there is no such folder")
    if make_key is not None:
        _make_key(make_key)
    elif status is not None:
        _show_status(status, key)
    elif listen is not None:
        _serve(listen, key, models)


def _asked(
    listen: str | None, make_key: Path | None, status: str | None
) -> dict[str, str | Path | None]:
    return {"--listen": listen, "--make-key": make_key, "--status": status}


def _make_key(path: Path) -> None:
    from treepipe.executor.transport import KeyPair

    KeyPair.new().save(path)
    typer.echo(f"{path}: a new key; copy it to the coordinator and to every worker's host")


def _show_status(address: str, key_file: Path | None) -> None:
    from treepipe.executor.addresses import parse_address
    from treepipe.executor.remote import status
    from treepipe.executor.transport import KeyPair

    parse_address(address, "--status")
    found = status(address, None if key_file is None else KeyPair.load(key_file))
    at = f"at work as {', '.join(found.roles)}" if found.roles else "free"
    typer.echo(
        f"{address}: {at}; up for {found.up_s:.0f} s, {found.sessions} sessions so far; "
        f"{found.refused} strangers refused, {found.dropped} messages dropped; "
        f"{found.versions.described}; {found.processor.cores} cores of {found.processor.name}"
    )


def _serve(address: str, key_file: Path | None, models: Path | None) -> None:
    from treepipe.executor.addresses import parse_address
    from treepipe.executor.daemon import Daemon
    from treepipe.executor.transport import KeyPair

    host, port = parse_address(address, "--listen")
    key = None if key_file is None else KeyPair.load(key_file)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("treepipe.worker").setLevel(logging.INFO)
    with Daemon(host, port, key, None if models is None else models.resolve()) as daemon:
        guarded = "who holds the key" if key is not None else "anybody on this host"
        listening = f"listening on {daemon.address} for {guarded}"
        Console(stderr=True, markup=False).print(listening, highlight=False)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as systemd ends it
        with contextlib.suppress(KeyboardInterrupt):
            daemon.serve()
