"""One function per kind of calibration, from a request to written profiles.

Each returns its profiles' files, raises ``UserError`` before it measures if the request is wrong or
a file may not be written, and writes the measurements so far at a ``KeyboardInterrupt``.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from treepipe.core.errors import UserError
from treepipe.executor.addresses import parse_address
from treepipe.executor.computing import DTYPES, gpu_fault
from treepipe.executor.fleet import Fleet
from treepipe.executor.measure.acceptance import acceptance_profile, open_pair
from treepipe.executor.measure.calibration import AcceptanceRecorder
from treepipe.executor.measure.device import DeviceSession, device_profile
from treepipe.executor.measure.in_place import HostSession
from treepipe.executor.measure.link import TURNS, LinkSession, link_profile, link_versions
from treepipe.executor.measure.pairs import (
    HostPair,
    PairsSession,
    beside,
    host_pairs,
    pair_sections,
    summary,
    with_pairs,
)
from treepipe.executor.measure.requests import (
    TEXTS,
    AcceptanceRequest,
    DeviceRequest,
    LinksRequest,
    RunRequest,
)
from treepipe.executor.measure.subject import open_subject
from treepipe.executor.measure.timing import Effort
from treepipe.executor.measure.work import Bench, Points
from treepipe.executor.prompts import load_texts
from treepipe.executor.remote import ask_all
from treepipe.files.outputs import check_outputs, claim_folder, write_file
from treepipe.files.section import Section
from treepipe.files.toml_file import toml_text, validated
from treepipe.profiles.schema import LinkProfile
from treepipe.profiles.shapes import BYTES
from treepipe.progress import Progress
from treepipe.scenario.memory import weights_mib
from treepipe.scenario.resolve import deploy, resolve
from treepipe.scenario.scenario import Scenario, override_key
from treepipe.scenario.schema import DraftSection, Stage, endpoint

DEVICES = ("cpu", "cuda")
TABLE = "links.toml"
"""Name of the file that assigns links to pairs, in the folder of all links' profiles."""
DIGITS = 5
"""Significant digits of a figure, the precision of times."""


# --- one function per kind ------------------------------------------------------------------------


def calibrate_device(asked: DeviceRequest, say: Progress) -> list[Path]:
    """Measure this machine and write its device profile; see ``docs/calibration.md``."""
    bench = _bench(asked)
    claim(asked.out, asked.force)
    subject = open_subject(asked.model, asked.draft, bench)
    session = DeviceSession(subject, bench, asked.seconds)

    try:
        with _threads(bench.points.threads):
            session.run(say)
    finally:
        if session.found.any:
            profile = device_profile(session)
            heading = f"{profile.origin.hardware}, measured by treepipe calibrate."
            write_profile(profile, heading, asked.out)
    return [asked.out]


def calibrate_links(asked: LinksRequest, say: Progress) -> list[Path]:
    """Measure the link to a peer, or all links between the hosts of a scenario.

    Raises:
        RunError: a host or the peer stopped answering. Finished links of a scenario are written.
    """
    if asked.scenario is None:
        if asked.scenario_out is not None:
            raise UserError("--scenario-out: is for a scenario's links, and no scenario is given")
        return [_one_link(asked.peer, asked, say)]
    for option, given in (("peer", asked.peer), ("key", asked.key)):
        if given is not None:
            raise UserError(f"--{option} {given}: a scenario says it; give one of both")
    return _scenario_links(Scenario.load(asked.scenario), asked, say)


def _one_link(peer: str | None, asked: LinksRequest, say: Progress) -> Path:
    """Measure the link to a peer's worker; without one, to another process of this host."""
    out, name = Path(asked.out or "calibrated-link.toml"), peer or "another process of this host"
    claim(out, asked.force)
    if peer is not None:
        parse_address(peer, "--peer")
    with contextlib.closing(Fleet([] if peer is None else [peer])) as fleet:
        fleet.meet(asked.key)
        with PairsSession(fleet).end_here(peer) as end:
            session, start = LinkSession(end, f"link to {name}"), time.perf_counter()
            try:
                session.run(Effort(asked.seconds, turns=TURNS), say)
            finally:
                spent, ends = time.perf_counter() - start, f"{platform.node()} to {name}"
                profile = link_profile(session.samples, ends, spent, link_versions())
                if profile is not None:
                    write_profile(profile, f"Link to {name}, by treepipe calibrate links.", out)
    return out


def _scenario_links(scenario: Scenario, asked: LinksRequest, say: Progress) -> list[Path]:
    """Write a profile for each link into a folder, and ``TABLE``, the scenario's table of them."""
    deployment = resolve(scenario)
    pairs = host_pairs(deployment)
    out = Path(asked.out or "calibrated-links")
    files = {pair: out / pair.file for pair in pairs}
    target = scenario_target(asked.scenario_out, scenario, asked.force)
    hosts = [host for pair in pairs for host in pair.hosts if host is not None]
    done: dict[HostPair, LinkProfile] = {}
    say("links", len(pairs))
    with claimed([*files.values(), out / TABLE], asked.force):
        try:
            with contextlib.closing(Fleet(hosts)) as fleet:
                fleet.meet(deployment.wiring.key)
                session = PairsSession(fleet, deployment.faults.timeout_ms, scenario.base_port)
                for pair in pairs:
                    done[pair] = session.measure(pair, asked.seconds)
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


def calibrate_acceptance(asked: AcceptanceRequest, say: Progress) -> list[Path]:
    """Run target and draft over prompts; write the pool and its profile beside it."""
    pair = open_pair(asked)
    if asked.out.suffix == ".json":
        raise UserError(f"--out {asked.out}: must end in .toml; the pool is put beside it as .json")
    pool, recorded = asked.out.with_suffix(".json"), None
    claim(asked.out, asked.force)
    claim(pool, asked.force)
    say("prompts", len(pair.texts.prompts))
    try:
        with _threads(1):  # in small passes threads only wait for each other
            for grown in AcceptanceRecorder(pair.settings, pair.texts).pools():
                recorded = grown
                say("", 1)
    finally:
        if recorded is not None:
            profile = acceptance_profile(pair, recorded, pool.name, asked.task or asked.prompts)
            recorded.save(pool, "--out")
            write_profile(profile, f"{profile.draft} guessing {profile.target}.", asked.out)
    return [asked.out]


def calibrate_run(asked: RunRequest, say: Progress) -> list[Path]:
    """Run a scenario's own workers without emulation, and write their hosts' profiles.

    Returns the profiles' files: ``out``, or one each in the folder ``out`` for several hosts.

    Raises:
        UserError: the scenario is wrong, there are too few prompts, or a file may not be written.
        RunError: a worker failed.
        KeyboardInterrupt: the measurements of whole turns are written.
    """
    scenario = Scenario.load(asked.scenario)
    files = _profile_files(scenario, asked)
    target = scenario_target(asked.scenario_out, scenario, asked.force)
    with claimed([*files.values()], asked.force):
        ask_all(scenario.workers, scenario.key_file)
        # What sampling costs is the device's, so factors on its times are those of greedy texts.
        plain = scenario.with_(sampling={}, hosts={})
        session = HostSession(asked, plain)
        read = {machine.name: mib for machine, mib in weights_mib(deploy(plain)).items()}
        try:
            session.run(say)
        finally:
            if session.turns:
                for name, measured in session.profiles():
                    mib = read.get(name)
                    profile = measured.model_copy(update={"restart_mib": mib and round(mib, 1)})
                    hardware = profile.origin.hardware
                    heading = f"{hardware} in place, measured by treepipe calibrate run."
                    write_profile(profile, heading, files[name])
    if target is not None:
        named = {name: {"profile": beside(scenario.path, file)} for name, file in files.items()}
        content = scenario.content
        content["hosts"] = {**content.get("hosts", {}), **named}
        heading = f"{scenario.path.name} with hosts by treepipe calibrate run."
        write_file(target, toml_text(content, [heading]), "--scenario-out")
    return list(files.values())


def _profile_files(scenario: Scenario, asked: RunRequest) -> dict[str, Path]:
    """Choose each host's profile file. Raises ``UserError`` if the request is wrong."""
    names = _host_names(scenario)
    count = len(load_texts(asked.prompts, Path(), "--prompts"))
    if count < TEXTS:
        raise UserError(
            f"--prompts {asked.prompts}: holds {count} texts; calibrate run continues {TEXTS}"
        )
    out = asked.out
    if len(names) == 1:
        return {names[0]: out or Path("calibrated-host.toml")}
    if out is not None and out.suffix == ".toml":
        raise UserError(f"--out {out}: must be a folder, of profiles of {', '.join(names)}")
    folder = out or Path("calibrated-hosts")
    return {name: folder / f"{name}.toml" for name in names}


def _host_names(scenario: Scenario) -> list[str]:
    """Collect the hosts' names. Raises ``UserError`` if one is missing or names two machines."""
    workers: dict[str, str | None] = {}
    roles: list[DraftSection | Stage] = [*scenario.drafts]
    roles += [stage for pipeline in scenario.pipelines for stage in pipeline.stages]
    for role in roles:
        if role.host is None:
            raise UserError(
                f"{scenario.path}: calibrate run measures hosts by name, so each draft server and "
                f"stage must have a key host"
            )
        address = None if role.worker is None else endpoint(role.worker)[0]
        if workers.setdefault(role.host, address) != address:
            raise UserError(
                f"{scenario.path}: host = {role.host!r} is the name of two machines: "
                f"{workers[role.host] or 'this one'} and {address or 'this one'}"
            )
    return list(workers)


CALIBRATIONS: dict[str, tuple[type[Any], Callable[..., list[Path]]]] = {
    "device": (DeviceRequest, calibrate_device),
    "links": (LinksRequest, calibrate_links),
    "acceptance": (AcceptanceRequest, calibrate_acceptance),
    "run": (RunRequest, calibrate_run),
}
"""Kinds of calibration: the request's record, and the function that serves it."""


# --- requests -------------------------------------------------------------------------------------


def _bench(asked: DeviceRequest) -> Bench:
    """Check the options. Raises ``UserError`` without such a device or type."""
    device = asked.device
    if device not in DEVICES:
        raise UserError(f"--device {device}: must be one of {', '.join(DEVICES)}")
    if device == "cuda" and (fault := gpu_fault()) is not None:
        raise UserError(f"--device cuda: {fault}; --device cpu measures its processor")
    name = asked.dtype or ("float32" if device == "cpu" else "float16")
    dtypes = {str(known): dtype for known, dtype in DTYPES.items()}
    if name not in dtypes:
        hint = "; quantized weights are not measured" if name in BYTES else ""
        raise UserError(f"--dtype {name}: must be one of {', '.join(dtypes)}{hint}")
    content = dict[str, Any]()
    for setting in asked.settings or ():
        override_key(content, setting)
    return Bench(device, dtypes[name], validated(Points, content, "calibrate"))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- files: claimed before the measurement, and written whole or not at all -----------------------


def claim(out: Path, force: bool) -> None:
    """Raise ``UserError`` if ``--out`` cannot be written; called before measuring."""
    check_outputs({"--out": out}, keep=() if force else ("--out",))


@contextlib.contextmanager
def claimed(files: Sequence[Path], force: bool) -> Iterator[None]:
    """Claim files. The folder of several is made, and removed if nothing was written into it."""
    folder = files[0].parent
    is_new = len(files) > 1 and not folder.exists()
    if len(files) > 1:
        claim_folder(folder, "--out")
    for file in files:
        claim(file, force)
    try:
        yield
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def scenario_target(given: Path | str | None, scenario: Scenario, force: bool) -> Path | None:
    """Return the file of ``--scenario-out``. Raises ``UserError`` if it may not be there."""
    if given is None:
        return None
    path, option = Path(given), "--scenario-out"
    if path.resolve().parent != scenario.path.resolve().parent:
        raise UserError(
            f"{option} {path}: must be in the folder of {scenario.path}, from which the names of "
            f"files in it count"
        )
    check_outputs({option: path}, inputs=[scenario.path], keep=() if force else (option,))
    return path


def write_profile(profile: Section, heading: str, out: Path) -> None:
    """Write a profile below a heading; an older file stays until the new one is complete."""
    data = profile.model_dump(exclude_defaults=True)
    # The origin precedes the long tables of times.
    ordered = dict(sorted(data.items(), key=lambda item: item[0] != "origin"))
    write_file(out, toml_text(ordered, [heading], DIGITS), "--out")
