"""``treepipe worker``: this host's part in runs that a coordinator on another one starts."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from treepipe.cli.options import command
from treepipe.core.errors import UserError
from treepipe.extras import need_executor


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of ``treepipe worker``."""

    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve coordinators at this address.")
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(help="The key that coordinators hold, too; not needed on the loopback."),
    ] = None
    models: Annotated[
        Path | None, typer.Option(help="Folder that holds this host's checkpoints by their names.")
    ] = None
    make_key: Annotated[
        Path | None, typer.Option(help="Write a new key to this file, and end.")
    ] = None
    status: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Show what the worker there is at.")
    ] = None


@command(WorkerOptions)
def worker(asked: WorkerOptions) -> None:
    """Serve as a worker on this host, for one coordinator at a time."""
    need_executor("treepipe worker")
    listen, make_key, status = asked.listen, asked.make_key, asked.status
    works = {"--listen": listen, "--make-key": make_key, "--status": status}
    given = [name for name, value in works.items() if value is not None]
    if len(given) != 1:
        raise UserError("treepipe worker takes one of --listen, --make-key and --status")
    if asked.models is not None and listen is None:
        raise UserError(f"treepipe worker {given[0]} takes no --models")
    if asked.key is not None and make_key is not None:
        raise UserError(f"treepipe worker {given[0]} takes no --key")
    if asked.models is not None and not asked.models.is_dir():
        raise UserError(f"--models {asked.models}: there is no such folder")
    if make_key is not None:
        _make_key(make_key)
    elif status is not None:
        _show_status(status, asked.key)
    elif listen is not None:
        _serve(listen, asked.key, asked.models)


def _make_key(path: Path) -> None:
    from treepipe.executor.wire.keys import KeyPair

    KeyPair.new().save(path)
    typer.echo(f"{path}: a new key; copy it to the coordinator and to every worker's host")


def _show_status(address: str, key_file: Path | None) -> None:
    from treepipe.executor.hosts.remote import status
    from treepipe.executor.wire.addresses import parse_address
    from treepipe.executor.wire.keys import KeyPair

    parse_address(address, "--status")
    found = status(address, None if key_file is None else KeyPair.load(key_file))
    at = f"at work as {', '.join(found.roles)}" if found.roles else "free"
    typer.echo(
        f"{address}: {at}; up for {found.up_s:.0f} s, {found.sessions} sessions so far; "
        f"{found.refused} strangers refused, {found.dropped} messages dropped; "
        f"{found.versions.described}; {found.processor.cores} cores of {found.processor.name}"
    )


def _serve(address: str, key_file: Path | None, models: Path | None) -> None:
    from rich.console import Console

    from treepipe.executor.hosts.daemon import Daemon
    from treepipe.executor.wire.addresses import parse_address
    from treepipe.executor.wire.keys import KeyPair

    host, port = parse_address(address, "--listen")
    key = None if key_file is None else KeyPair.load(key_file)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("treepipe.worker").setLevel(logging.INFO)
    folder = None if models is None else models.resolve()
    # A signal is its usual end, from when it says that it listens.
    with contextlib.suppress(KeyboardInterrupt), Daemon(host, port, key, folder) as daemon:
        guarded = "who holds the key" if key is not None else "anybody on this host"
        listening = f"listening on {daemon.address} for {guarded}"
        Console(stderr=True, markup=False).print(listening, highlight=False)
        daemon.serve()
