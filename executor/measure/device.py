"""Measuring a device, step by step: peak figures, passes, idle effect; saved after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from treepipe.core.errors import UserError
from treepipe.executor.measure.budget import LITTLE, choose, guess_times, idle_seconds
from treepipe.executor.measure.machine import Peak, peak_memory_mib, peak_probes, runtime_mib
from treepipe.executor.measure.subject import Subject
from treepipe.executor.measure.timing import (
    Effort,
    Probe,
    Sampler,
    Samples,
    Summary,
    clock_of,
    measured,
)
from treepipe.executor.measure.work import (
    SINGLE_TOKENS,
    Bench,
    LayerBlock,
    WorkPoint,
    draft_probes,
    end_probes,
)
from treepipe.progress import Progress

GAPS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FEW_GAPS_MS = (0.0, 10.0, 100.0)
"""Idle gaps for measurements with little time."""
IDLE_TOKENS = 16
IDLE_CONTEXT = 256
PEAKS, IDLE = 0.05, 0.10
"""Shares of the time for peak figures and for the idle effect; passes have the rest."""


@dataclass(slots=True)
class Measurements:
    """Times measured so far.

    Attributes:
        missing: unfinished steps.
        thinned: a sentence on points left out for lack of time, or empty.
    """

    peaks: Samples[Peak] = field(default_factory=dict)
    passes: Samples[WorkPoint] = field(default_factory=dict)
    idle: Samples[float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    thinned: str = ""
    peak_memory_mib: float = 0.0
    runtime_mib: float = 0.0
    seconds: float = 0.0

    def table(self, kind: str) -> dict[int, dict[int, Summary]]:
        """Return the times of one kind of pass: context -> tokens -> milliseconds."""
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
    """A measurement of one pair of models on one device; ``found`` grows while ``run`` works."""

    def __init__(self, subject: Subject, bench: Bench, seconds: float) -> None:
        self.found = Measurements(runtime_mib=runtime_mib(bench.device))
        self._subject, self._bench, self._seconds = subject, bench, seconds
        self._clock = clock_of(bench.device)
        self._start = time.perf_counter()
        self._block: LayerBlock | None = None

    @property
    def withheld(self) -> float:
        """Share of the timed interval in which other processes had the processor; not counted."""
        return self._clock.withheld

    def run(self, say: Progress, save: Callable[[], None]) -> None:
        """Measure; ``save`` is called after each step, and on an interruption.

        Raises:
            UserError: the models do not fit into memory.
            KeyboardInterrupt: the measurements so far are saved.
        """
        self._start = time.perf_counter()
        steps = {"peak figures": self._peaks, "passes": self._passes, "idle effect": self._idle}
        self.found.missing = list(steps)
        try:
            for name, step in steps.items():
                say(name, 100)
                step(say)
                self.found.missing.remove(name)
                self._note()
                save()
        except KeyboardInterrupt:
            self._note()
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

    @property
    def _left(self) -> float:
        return self._seconds - (time.perf_counter() - self._start)

    def _note(self) -> None:
        self.found.seconds = time.perf_counter() - self._start
        self.found.peak_memory_mib = peak_memory_mib(self._bench.device)

    def _peaks(self, say: Progress) -> None:
        probes = peak_probes(self._bench.device, self._bench.dtype)
        effort = Effort(PEAKS * self._seconds)
        Sampler(self._clock, self.found.peaks).measure(probes, effort, say)

    def _passes(self, say: Progress) -> None:
        probes, bench = list(self._probes()), self._bench
        guess = guess_times(probes, self._clock)
        idle = idle_seconds(FEW_GAPS_MS, guess(("block", IDLE_TOKENS, self._idle_context)))
        left = self._left - max(IDLE * self._seconds, idle)
        choice = choose(probes, bench.tokens, bench.contexts, left, guess)
        if choice.thinned:
            self.found.thinned = choice.sentence(bench.tokens, bench.contexts)
            say(f"{len(choice.probes)} of {len(probes)}, {choice.seconds:.0f} s", 100)
        effort = Effort(max(left, choice.seconds))
        Sampler(self._clock, self.found.passes).measure(choice.probes, effort, say)

    def _probes(self) -> Iterator[Probe[WorkPoint]]:
        subject, bench = self._subject, self._bench
        target = subject.target.checkpoint
        self._block = block = LayerBlock(target, subject.layers, bench)
        yield from (block.probe(("block", *point)) for point in bench.points)
        yield block.prune()
        if subject.layers > 1:
            # After the shortest context only: a single layer's longer caches would stay in the
            # processor's cache, unlike a block's.
            tokens = tuple(n for n in bench.tokens if n <= SINGLE_TOKENS)
            single = LayerBlock(target, 1, replace(bench, contexts=(min(bench.contexts),)))
            yield from (single.probe(("single", n, min(bench.contexts))) for n in tokens)
        yield from end_probes(target, bench)
        if subject.draft is not None:
            yield from draft_probes(subject.draft.checkpoint, bench)

    @property
    def _idle_context(self) -> int:
        return min(self._bench.contexts, key=lambda context: abs(context - IDLE_CONTEXT))

    def _idle(self, say: Progress) -> None:
        assert self._block is not None, "passes come first"
        bench = self._bench
        base = self._block.probe(("block", IDLE_TOKENS, self._idle_context))

        def rest(gap_ms: float) -> Callable[[], None]:
            def before() -> None:
                base.before()
                base.work()
                if bench.device == "cuda":
                    torch.cuda.synchronize()
                base.before()
                time.sleep(gap_ms / 1e3)

            return before

        left = self._left
        pass_ms = guess_times([base], self._clock)(base.key)
        fits = idle_seconds(GAPS_MS, pass_ms) <= max(min(left, IDLE * self._seconds), LITTLE)
        gaps = GAPS_MS if fits else FEW_GAPS_MS
        probes = [Probe(gap, base.work, rest(gap), warm=False) for gap in gaps]
        effort = Effort(max(min(left, IDLE * self._seconds), 1e-3))
        Sampler(self._clock, self.found.idle).measure(probes, effort, say)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory is short; Torch has an error class for a GPU's memory only."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)
