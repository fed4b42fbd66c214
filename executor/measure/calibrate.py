"""From what the command line asks for to a written profile: one function per kind of profile."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from treepipe.core.errors import UserError
from treepipe.executor.computing import DTYPES, gpu_fault
from treepipe.executor.fleet import Fleet
from treepipe.executor.keys import parse_address
from treepipe.executor.measure.acceptance import (
    acceptance_profile,
    open_pair,
    pool_path,
    source_for,
)
from treepipe.executor.measure.calibration import growing_pool
from treepipe.executor.measure.device import CONTEXTS, TOKENS, DeviceSession
from treepipe.executor.measure.device_file import device_profile
from treepipe.executor.measure.in_place import HostSession
from treepipe.executor.measure.link import TURNS, LinkSession, link_profile, link_versions
from treepipe.executor.measure.pairs import (
    HostPair,
    PairsSession,
    host_pairs,
    pair_sections,
    summary,
    with_pairs,
)
from treepipe.executor.measure.peer import (
    End,
    address_towards,
    local_peer,
    numeric,
)
from treepipe.executor.measure.profile_file import beside, claim, claim_profiles, write_profile
from treepipe.executor.measure.progress import Say
from treepipe.executor.measure.run_request import RunRequest, profile_files
from treepipe.executor.measure.subject import open_subject
from treepipe.executor.measure.timing import Effort
from treepipe.executor.measure.work import Bench
from treepipe.executor.transport import LOOPBACK
from treepipe.files.outputs import check_outputs, claim_folder, write_file
from treepipe.files.toml_file import toml_text, validated
from treepipe.profiles.schema import LinkProfile
from treepipe.profiles.shapes import BYTES
from treepipe.scenario.computing import Computed
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import SamplingSection, SourceSection

DEVICES = ("cpu", "cuda")
TABLE = "links.toml"
"""Of the folder of all links' profiles, the file that says which is whose."""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What is to be measured of this machine.

    Attributes:
        model, draft, layers: see ``subject.open_subject``.
        dtype: to compute in; None is float32 on a CPU, float16 on a GPU.
        threads: that the CPU computes with; a worker of the executor has one.
        tokens, contexts: rows per pass, and cache entries before them.
        seconds: time to spend at most.
    """

    model: str = "reference"
    draft: str | None = None
    device: str = "cpu"
    dtype: str | None = None
    threads: int = 1
    layers: int | None = None
    tokens: tuple[int, ...] = TOKENS
    contexts: tuple[int, ...] = CONTEXTS
    seconds: float = 120.0

    def bench(self) -> Bench:
        """Raises ``UserError`` if this machine has no such device, or it no such type."""
        _check_device(self.device)
        name = _dtype(self.dtype or ("float32" if self.device == "cpu" else "float16"))
        return Bench(self.device, DTYPES[name], self.tokens, self.contexts)


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """The link that is to be measured.

    Attributes:
        peer: HOST:PORT where ``treepipe calibrate peer`` listens; None is a process of this host.
        seconds: time to spend at most.
    """

    peer: str | None = None
    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class PairsRequest:
    """The links between all hosts of a scenario.

    Attributes:
        scenario: a scenario's file; the pairs of hosts that its roles send between are measured.
        seconds: time to spend on each link at most.
        together: all links at the same time; else one after another, so that each is alone.
        scenario_out: where to write the scenario with these links; None is nowhere.
    """

    scenario: str
    seconds: float = 20.0
    together: bool = False
    scenario_out: Path | str | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceRequest:
    """Who is to guess whom, along which texts.

    Attributes:
        model, draft, head, prompts, new_tokens: see ``acceptance.open_pair``.
        task: what kind of text it is; None is the name of the prompts.
        seed: of sampled texts, and of the wrong tokens that are tried.
        source: what drafts, as a scenario's draft says it; None: a model, or the head if one is
            given.
        keys: of draft sources, as a scenario's draft says them.
        temperature to agreement_weight: as a scenario's ``[sampling]``.
    """

    model: str = "reference"
    draft: str | None = None
    head: str | None = None
    prompts: str = "reference:calibration"
    new_tokens: int = 128
    task: str | None = None
    seed: int = 0
    source: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    rule: str = "exact"
    relaxed_top_p: float = 0.9
    tau_max: float = 0.5
    contrast_weight: float = 1.0
    matches_weight: float = 1.0
    agreement_weight: float = 1.0

    @property
    def kind(self) -> SourceSection:
        """Raises ``UserError`` as ``sampling``."""
        given = {"source": self.source or source_for(self.head).source, **self.keys}
        return validated(SourceSection, given, "calibrate acceptance")

    @property
    def sampling(self) -> SamplingSection:
        """Raises ``UserError`` if a value is out of range."""
        given = {key: getattr(self, key) for key in SamplingSection.model_fields}
        return validated(SamplingSection, given, "calibrate acceptance")


def calibrate_device(asked: DeviceRequest, out: Path, say: Say, *, force: bool = False) -> None:
    """Measure this machine and write its device profile; see ``docs/calibration.md``.

    Raises:
        UserError: something that was asked for is not there, or the file may not be written.
        KeyboardInterrupt: what was measured until then is written.
    """
    bench = asked.bench()
    claim(out, force)
    subject = open_subject(asked.model, asked.draft, asked.layers, bench.dtype, bench.device)
    session = DeviceSession(subject, bench, asked.seconds)

    def save() -> None:
        if session.found.any:
            profile = device_profile(subject, bench, asked.threads, session.withheld, session.found)
            heading = f"{profile.origin.hardware}, measured by treepipe calibrate."
            write_profile(profile, heading, out)

    with _threads(asked.threads):
        session.run(say, save)


def calibrate_link(asked: LinkRequest, out: Path, say: Say, *, force: bool = False) -> None:
    """Measure the link to a peer and write its profile.

    Raises:
        UserError: nobody answers there, or the file may not be written.
        KeyboardInterrupt: what was measured until then is written, if it says enough.
    """
    claim(out, force)
    with contextlib.ExitStack() as stack:
        if asked.peer is None:
            name, here = "another process of this host", LOOPBACK
            address = stack.enter_context(local_peer())
        else:
            host, port = parse_address(asked.peer, "--peer")
            name, here = asked.peer, address_towards(numeric(host, "--peer"), port)
            address = f"tcp://{numeric(host, '--peer')}:{port}"
        end = stack.enter_context(contextlib.closing(End(here, 0, "--peer")))
        here, there = (each.removeprefix("tcp://") for each in (end.inbox.address, address))
        hint = f"does 'treepipe calibrate peer' listen there, and can it reach {here}?"
        session, start = LinkSession(end, address, f"--peer {there}", hint), time.perf_counter()
        try:
            session.run(Effort(asked.seconds, turns=TURNS), say)
        finally:
            spent, ends = time.perf_counter() - start, f"{platform.node()} to {name}"
            profile = link_profile(session.samples, ends, spent, link_versions())
            if profile is not None:
                write_profile(profile, f"Link to {name}, by treepipe calibrate links.", out)


def calibrate_pairs(asked: PairsRequest, out: Path, say: Say, *, force: bool = False) -> None:
    """Measure the links between all hosts of a scenario, each from its own two hosts.

    Args: ``out``: the folder of a profile per link, and of ``TABLE``, the scenario's table of them.

    Raises:
        UserError: the scenario is wrong or has but one host, two hosts do not reach each other, or
            a file may not be written.
        RunError: a host does not answer, or refuses. What was measured until then is written.
        KeyboardInterrupt: the same.
    """
    scenario = Scenario.load(asked.scenario)
    deployment = resolve(scenario)
    pairs = host_pairs(deployment)
    files = {pair: out / pair.file for pair in pairs}
    target = _scenario_out(asked, scenario, force)
    claim_folder(out, "--out")
    for file in (*files.values(), out / TABLE):
        claim(file, force)
    hosts = [host for pair in pairs for host in pair.hosts if host is not None]
    done: dict[HostPair, LinkProfile] = {}
    say("links", len(pairs))
    try:
        with contextlib.closing(Fleet((), others=hosts)) as fleet:
            fleet.meet(deployment.key)
            session = PairsSession(fleet, deployment.faults.timeout_ms, scenario.base_port)
            for group in [pairs] if asked.together else [[pair] for pair in pairs]:
                for pair, profile in session.measure(group, asked.seconds):
                    heading = f"Link {pair}, by treepipe calibrate links."
                    write_profile(profile, heading, files[pair])
                    done[pair] = profile
                    say("", 1)
    finally:
        sections = pair_sections(deployment, {pair: files[pair] for pair in done})
        if done:
            lines = [f"Links of {scenario.path.name}, by treepipe calibrate links:", *summary(done)]
            write_file(out / TABLE, toml_text({"links": {"pairs": sections}}, lines), "--out")
    if target is not None:
        heading = f"{scenario.path.name} with links by treepipe calibrate links."
        write_file(target, toml_text(with_pairs(scenario, sections), [heading]), "--scenario-out")


def _scenario_out(asked: PairsRequest | RunRequest, scenario: Scenario, force: bool) -> Path | None:
    """Give the file of the scenario with what is measured; raises ``UserError`` if it may not be
    there."""
    if asked.scenario_out is None:
        return None
    path, option = Path(asked.scenario_out), "--scenario-out"
    if path.resolve().parent != scenario.path.resolve().parent:
        raise UserError(
            f"{option} {path}: must be in the folder of {scenario.path}, from which the names of "
            f"files in it count"
        )
    keep = () if force else (option,)
    check_outputs({option: path}, inputs=[scenario.path], keep=keep)
    return path


def calibrate_acceptance(
    asked: AcceptanceRequest, out: Path, say: Say, *, force: bool = False
) -> None:
    """Run target and draft over prompts; write the pool and its profile beside it.

    Raises:
        UserError: as ``open_pair``, or the files may not be written.
        KeyboardInterrupt: the prompts that were done until then are written.
    """
    pair = open_pair(
        asked.model,
        asked.draft,
        asked.head,
        asked.prompts,
        asked.new_tokens,
        asked.kind,
        asked.sampling,
    )
    pool, recorded = pool_path(out), None
    claim(out, force)
    claim(pool, force)
    say("prompts", len(pair.prompts))
    try:
        with _threads(1):  # small passes; more threads only wait for each other
            texts = pair.texts(asked.seed)
            for grown in growing_pool(texts, pair.recorder(texts)):
                recorded = grown
                say("", 1)
    finally:
        if recorded is not None:
            profile = acceptance_profile(pair, recorded, pool.name, asked.task or asked.prompts)
            recorded.save(pool, "--out")
            write_profile(profile, f"{profile.draft} guessing {profile.target}.", out)


def calibrate_run(asked: RunRequest, out: Path | None, say: Say, *, force: bool = False) -> None:
    """Run a scenario's own workers without emulation, and write their hosts' profiles.

    Args: ``out``: see ``profile_files``.

    Raises:
        UserError: as ``RunRequest.load``, or a file may not be written.
        RunError: a worker failed.
        KeyboardInterrupt: what whole turns have measured is written.
    """
    scenario = asked.load()
    session, files = HostSession(asked, scenario), profile_files(scenario, out)
    target = _scenario_out(asked, scenario, force)
    claim_profiles(files, force)
    try:
        session.run(say)
    finally:
        if session.rounds:
            for name, profile in session.profiles():
                heading = f"{profile.origin.hardware} in place, measured by treepipe calibrate run."
                write_profile(profile, heading, files[name])
    if target is not None:
        heading = f"{scenario.path.name} with hosts by treepipe calibrate run."
        write_file(target, toml_text(_with_hosts(scenario, files), [heading]), "--scenario-out")


def _with_hosts(scenario: Scenario, files: Mapping[str, Path]) -> dict[str, Any]:
    """A scenario's content with these hosts' profiles."""
    named = {name: {"profile": beside(scenario.path, file)} for name, file in files.items()}
    content = scenario.content
    return {**content, "hosts": {**content.get("hosts", {}), **named}}


CALIBRATIONS: dict[str, tuple[type[Any], Callable[..., None]]] = {
    "device": (DeviceRequest, calibrate_device),
    "links": (LinkRequest, calibrate_link),
    "pairs": (PairsRequest, calibrate_pairs),
    "acceptance": (AcceptanceRequest, calibrate_acceptance),
    "run": (RunRequest, calibrate_run),
}
"""What can be measured: how it is asked for, and the function that does it."""


def _check_device(device: str) -> None:
    if device not in DEVICES:
        raise UserError(f"--device {device}: must be one of {', '.join(DEVICES)}")
    if device == "cuda" and (fault := gpu_fault()) is not None:
        raise UserError(f"--device cuda: {fault}; --device cpu measures its processor")


def _dtype(name: str) -> Computed:
    known = {dtype: dtype for dtype in DTYPES}
    if name in known:
        return known[name]
    hint = "; quantized weights are not measured" if name in BYTES else ""
    raise UserError(f"--dtype {name}: must be one of {', '.join(known)}{hint}")


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    """Ascending whole numbers, separated by commas.

    >>> numbers("1,16,4", "--tokens", 1)
    (1, 4, 16)

    Raises:
        UserError: it is something else.
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < least:
        raise UserError(
            f"{option} {text}: must be whole numbers of at least {least}, separated by commas"
        )
    return tuple(found)
