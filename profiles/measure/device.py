"""Measuring a device, step by step: peak figures, passes, idle effect; saved after each.

An interruption keeps what is measured. What is written about it is in ``device_file.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from treepipe.errors import UserError
from treepipe.profiles.measure.machine import Peak, peak_memory_mib, peak_probes
from treepipe.profiles.measure.progress import Say, percent
from treepipe.profiles.measure.subject import Subject
from treepipe.profiles.measure.timing import (
    Effort,
    Probe,
    Sampler,
    Samples,
    Summary,
    clock_of,
    measured,
)
from treepipe.profiles.measure.work import (
    SINGLE_TOKENS,
    Bench,
    Block,
    Draft,
    Ends,
    Point,
)

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
CONTEXTS = (0, 256, 1024, 4096)
GAPS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
IDLE_TOKENS = 16
IDLE_CONTEXT = 256
SHARES = {"peak figures": 0.05, "passes": 0.85, "idle effect": 0.10}
"""Of the time to spend."""


@dataclass(slots=True)
class Measurements:
    """What was timed so far; ``missing`` names the steps that are not finished."""

    peaks: Samples[Peak] = field(default_factory=dict)
    passes: Samples[Point] = field(default_factory=dict)
    idle: Samples[float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    peak_memory_mib: float = 0.0
    seconds: float = 0.0

    def table(self, kind: str) -> dict[int, dict[int, Summary]]:
        """Of one kind of pass: context -> tokens -> milliseconds."""
        found: dict[int, dict[int, Summary]] = {}
        for (name, tokens, context), summary in sorted(measured(self.passes).items()):
            if name == kind:
                found.setdefault(context, {})[tokens] = summary
        return found

    @property
    def any(self) -> bool:
        """Whether a profile can be written."""
        peaks = {name for name, _ in measured(self.peaks)}
        return peaks == {"matmul", "stream"} or bool(self.table("block") or self.table("draft"))


class DeviceSession:
    """One device, one pair of models.

    Attributes:
        found: grows while ``run`` works.
    """

    def __init__(self, subject: Subject, bench: Bench, seconds: float) -> None:
        """Args: ``seconds``: time to spend, loading of weights besides."""
        self.found = Measurements()
        self._subject, self._bench, self._seconds = subject, bench, seconds
        self._clock = clock_of(bench.device)

    @property
    def withheld(self) -> float:
        """Share of the time timed that other processes had the processor; not counted."""
        return self._clock.withheld

    def run(self, say: Say, save: Callable[[], None]) -> None:
        """Measure; ``save`` is called after each step, and on an interruption.

        Raises:
            UserError: the models do not fit into memory.
            KeyboardInterrupt: as it came; what is measured is saved.
        """
        start = time.perf_counter()
        steps = {"peak figures": self._peaks, "passes": self._passes, "idle effect": self._idle}
        self.found.missing = list(steps)
        try:
            for name, step in steps.items():
                say(name, 100)
                step(Effort(self._seconds * SHARES[name]), percent(say))
                self.found.missing.remove(name)
                self._note(start)
                save()
        except KeyboardInterrupt:
            self._note(start)
            save()
            raise
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            raise UserError(
                f"--model {self._subject.target.name}: {self._subject.layers} layers, caches and "
                f"ends do not fit into the memory of {self._bench.device}; try --layers 1 or a "
                f"shorter --context"
            ) from None

    def _note(self, start: float) -> None:
        self.found.seconds = time.perf_counter() - start
        self.found.peak_memory_mib = peak_memory_mib(self._bench.device)

    def _peaks(self, effort: Effort, tick: Callable[[float], None]) -> None:
        probes = peak_probes(self._bench.device, self._bench.dtype)
        Sampler(self._clock, self.found.peaks).measure(probes, effort, tick)

    def _passes(self, effort: Effort, tick: Callable[[float], None]) -> None:
        Sampler(self._clock, self.found.passes).measure(list(self._probes()), effort, tick)

    def _probes(self) -> Iterator[Probe[Point]]:
        subject, bench = self._subject, self._bench
        block = Block(subject.target.checkpoint, subject.layers, bench)
        yield from block.probes("block", max(bench.tokens))
        yield block.prune()
        if subject.layers > 1:
            # Behind the shortest context: a single layer's longer caches would stay in the
            # processor's, those of a block do not.
            short = replace(bench, contexts=(min(bench.contexts),))
            yield from Block(subject.target.checkpoint, 1, short).probes("single", SINGLE_TOKENS)
        yield from Ends(subject.target.checkpoint, bench).probes()
        if subject.draft is not None:
            yield from Draft(subject.draft.checkpoint, bench).probes()

    def _idle(self, effort: Effort, tick: Callable[[float], None]) -> None:
        bench = replace(self._bench, tokens=(IDLE_TOKENS,), contexts=(IDLE_CONTEXT,))
        block = Block(self._subject.target.checkpoint, self._subject.layers, bench)
        base = block.probe(("block", IDLE_TOKENS, IDLE_CONTEXT))

        def rest(gap_ms: float) -> Callable[[], None]:
            def before() -> None:
                base.before()
                base.work()
                if bench.device == "cuda":
                    torch.cuda.synchronize()
                base.before()
                time.sleep(gap_ms / 1e3)

            return before

        probes = [Probe(gap, base.work, rest(gap), warm=False) for gap in GAPS_MS]
        Sampler(self._clock, self.found.idle).measure(probes, effort, tick)


def _is_out_of_memory(error: Exception) -> bool:
    """Torch has a kind of error for a GPU's memory only."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)
