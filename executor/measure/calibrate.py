"""One function per kind of calibration, from a request to written profiles.

Each returns its profiles' files, raises ``UserError`` before it measures if the request is wrong or
a file may not be written, and writes the measurements so far at a ``KeyboardInterrupt``.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from treepipe.core.errors import UserError
from treepipe.executor.measure.acceptance import AcceptanceRecorder, acceptance_profile, open_pair
from treepipe.executor.measure.device import DeviceSession, device_profile
from treepipe.executor.measure.link import TURNS, LinkSession, link_profile, link_versions
from treepipe.executor.measure.pairs import (
    HostPair,
    PairsSession,
    host_pairs,
    pair_sections,
    summary,
    with_pairs,
)
from treepipe.executor.measure.requests import (
    AcceptanceRequest,
    DeviceRequest,
    LinksRequest,
    RunRequest,
)
from treepipe.executor.measure.run import (
    calibrate_run,
    claim,
    claimed,
    scenario_target,
    write_profile,
)
from treepipe.executor.measure.timing import Effort
from treepipe.executor.measure.work import Bench, Points, open_subject
from treepipe.executor.models.computing import DTYPES, exact_products, gpu_fault
from treepipe.executor.run.fleet import Fleet
from treepipe.executor.wire.addresses import parse_address
from treepipe.files.outputs import write_file
from treepipe.files.reading import read_json
from treepipe.files.toml_file import toml_text, validated
from treepipe.profiles.schema import LinkProfile
from treepipe.profiles.shapes import BYTES
from treepipe.progress import Progress
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario, override_key

DEVICES = ("cpu", "cuda")
TABLE = "links.toml"
"""Name of the file that assigns links to pairs, in the folder of all links' profiles."""


# --- one function per kind ------------------------------------------------------------------------


def calibrate_device(request: DeviceRequest, say: Progress) -> list[Path]:
    """Measure this machine and write its device profile; see ``docs/calibration.md``."""
    bench = _bench(request)
    claim(request.out, request.force)
    subject = open_subject(request.model, request.draft, bench)
    session = DeviceSession(subject, bench, request.seconds)

    try:
        with _threads(bench.points.threads):
            session.run(say)
    finally:
        if session.results.any:
            profile = device_profile(session)
            heading = f"{profile.origin.hardware}, measured by treepipe calibrate."
            write_profile(profile, heading, request.out)
    return [request.out]


def calibrate_links(request: LinksRequest, say: Progress) -> list[Path]:
    """Measure the link to a peer, or all links between the hosts of a scenario.

    Raises:
        RunError: a host or the peer stopped answering. Finished links of a scenario are written.
    """
    if request.scenario is None:
        if request.scenario_out is not None:
            raise UserError("--scenario-out: is for a scenario's links, and no scenario is given")
        return [_one_link(request.peer, request, say)]
    for option, given in (("peer", request.peer), ("key", request.key)):
        if given is not None:
            raise UserError(f"--{option} {given}: a scenario says it; give one of both")
    return _scenario_links(Scenario.load(request.scenario), request, say)


def _one_link(peer: str | None, request: LinksRequest, say: Progress) -> Path:
    """Measure the link to a peer's worker; without one, to another process of this host."""
    out, name = Path(request.out or "calibrated-link.toml"), peer or "another process of this host"
    claim(out, request.force)
    if peer is not None:
        parse_address(peer, "--peer")
    with contextlib.closing(Fleet([] if peer is None else [peer])) as fleet:
        fleet.meet(request.key)
        with PairsSession(fleet).end_here(peer) as end:
            session, start = LinkSession(end, f"link to {name}"), time.perf_counter()
            try:
                session.run(Effort(request.seconds, turns=TURNS), say)
            finally:
                spent, ends = time.perf_counter() - start, f"{platform.node()} to {name}"
                profile = link_profile(session.samples, ends, spent, link_versions())
                if profile is not None:
                    write_profile(profile, f"Link to {name}, by treepipe calibrate links.", out)
    return out


def _scenario_links(scenario: Scenario, request: LinksRequest, say: Progress) -> list[Path]:
    """Write a profile for each link into a folder, and ``TABLE``, the scenario's table of them."""
    deployment = resolve(scenario)
    pairs = host_pairs(deployment)
    out = Path(request.out or "calibrated-links")
    files = {pair: out / pair.file for pair in pairs}
    target = scenario_target(request.scenario_out, scenario, request.force)
    hosts = [host for pair in pairs for host in pair.hosts if host is not None]
    done: dict[HostPair, LinkProfile] = {}
    say("links", len(pairs))
    with claimed([*files.values(), out / TABLE], request.force):
        try:
            with contextlib.closing(Fleet(hosts)) as fleet:
                fleet.meet(deployment.wiring.key)
                session = PairsSession(fleet, deployment.faults.timeout_ms, scenario.base_port)
                for pair in pairs:
                    done[pair] = session.measure(pair, request.seconds)
                    heading = f"Link {pair}, by treepipe calibrate links."
                    write_profile(done[pair], heading, files[pair])
                    say("", 1)
        finally:
            sections = pair_sections(deployment, {pair: files[pair] for pair in done})
            if done:
                heading = f"Links of {scenario.path.name}, by treepipe calibrate links:"
                text = toml_text({"links": {"pairs": sections}}, [heading, *summary(done)])
                write_file(out / TABLE, text, "--out")
    if target is not None:
        heading = f"{scenario.path.name} with links by treepipe calibrate links."
        write_file(target, toml_text(with_pairs(scenario, sections), [heading]), "--scenario-out")
    return [*files.values(), out / TABLE]


def calibrate_acceptance(request: AcceptanceRequest, say: Progress) -> list[Path]:
    """Run target and draft over prompts; write the pool and its profile beside it."""
    pair = open_pair(request)
    if request.out.suffix == ".json":
        raise UserError(
            f"--out {request.out}: must end in .toml; the pool is put beside it as .json"
        )
    pool, recorded = request.out.with_suffix(".json"), None
    claim(request.out, request.force)
    claim(pool, request.force)
    say("prompts", len(pair.texts.prompts))
    try:
        with _threads(1):  # in small passes threads only wait for each other
            for grown in AcceptanceRecorder(pair.settings, pair.texts).pools():
                recorded = grown
                say("", 1)
    finally:
        if recorded is not None:
            profile = acceptance_profile(pair, recorded, pool.name)
            recorded.save(pool, "--out")
            write_profile(profile, f"{profile.draft} guessing {profile.target}.", request.out)
    return [request.out]


CALIBRATIONS: dict[str, tuple[type[Any], Callable[..., list[Path]]]] = {
    "device": (DeviceRequest, calibrate_device),
    "links": (LinksRequest, calibrate_links),
    "acceptance": (AcceptanceRequest, calibrate_acceptance),
    "run": (RunRequest, calibrate_run),
}
"""Kinds of calibration: the request's record, and the function that serves it."""


# --- requests -------------------------------------------------------------------------------------


def check_device(device: str) -> Any:
    """Return the device. Raises ``UserError`` without such a one."""
    if device not in DEVICES:
        raise UserError(f"--device {device}: must be one of {', '.join(DEVICES)}")
    if device == "cuda" and (fault := gpu_fault()) is not None:
        raise UserError(f"--device cuda: {fault}; --device cpu measures its processor")
    return device


def _bench(request: DeviceRequest) -> Bench:
    """Check the options. Raises ``UserError`` without such a device or type."""
    device = check_device(request.device)
    name = request.dtype or ("float32" if device == "cpu" else half_of(request.model))
    dtypes = {str(known): dtype for known, dtype in DTYPES.items()}
    if name not in dtypes:
        hint = "; quantized weights are not measured" if name in BYTES else ""
        raise UserError(f"--dtype {name}: must be one of {', '.join(dtypes)}{hint}")
    content = dict[str, Any]()
    for setting in request.settings or ():
        override_key(content, setting)
    bench = Bench(device, dtypes[name], validated(Points, content, "calibrate"), request.eager)
    if bench.eager and not bench.graphs:
        raise UserError("--eager: all passes are eager; --set graphs=auto replays graphs beside")
    if device == "cuda":
        exact_products()  # as in a worker
    return bench


def half_of(model: str) -> str:
    """Return the type of 16 bits that a model's file names, or float16."""
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    content = read_json(path) if path.suffix == ".json" and path.exists() else {}
    named = content.get("dtype", content.get("torch_dtype"))
    return "bfloat16" if named == "bfloat16" else "float16"


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
