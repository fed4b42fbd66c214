"""Measuring a device, step by step: peak figures, passes, idle effect; saved after each.

An interruption keeps what is measured. What is written about it is in ``device_file.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from treepipe.core.errors import UserError
from treepipe.executor.measure.budget import LITTLE, choose, guess_times, idle_seconds
from treepipe.executor.measure.machine import Peak, peak_memory_mib, peak_probes, runtime_mib
from treepipe.executor.measure.progress import Say, percent
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
    DraftWork,
    Ends,
    LayerBlock,
    WorkPoint,
)

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
CONTEXTS = (0, 256, 1024, 4096)
GAPS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FEW_GAPS_MS = (0.0, 10.0, 100.0)
"""Where there is little time."""
IDLE_TOKENS = 16
IDLE_CONTEXT = 256
PEAKS, IDLE = 0.05, 0.10
"""Shares of the time to spend, for peak figures and for the idle effect; passes have the rest."""


@dataclass(slots=True)
class Measurements:
    """What was timed so far.

    Attributes:
        missing: steps that are not finished.
        thinned: what was left out for lack of time, in a sentence; empty: nothing.
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
        """The table of one kind of pass: context -> tokens -> milliseconds."""
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
        """Args: ``seconds``: time to spend; what the least grid of points takes more is told."""
        self.found = Measurements(runtime_mib=runtime_mib(bench.device))
        self._subject, self._bench, self._seconds = subject, bench, seconds
        self._clock = clock_of(bench.device)
        self._start = time.perf_counter()
        self._block: LayerBlock | None = None

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
        """Seconds of the time to spend."""
        return self._seconds - (time.perf_counter() - self._start)

    def _note(self) -> None:
        self.found.seconds = time.perf_counter() - self._start
        self.found.peak_memory_mib = peak_memory_mib(self._bench.device)

    def _peaks(self, say: Say) -> None:
        probes = peak_probes(self._bench.device, self._bench.dtype)
        effort = Effort(PEAKS * self._seconds)
        Sampler(self._clock, self.found.peaks).measure(probes, effort, percent(say))

    def _passes(self, say: Say) -> None:
        probes, bench = list(self._probes()), self._bench
        guess = guess_times(probes, self._clock)
        idle = idle_seconds(FEW_GAPS_MS, guess(("block", IDLE_TOKENS, self._idle_context)))
        left = self._left - max(IDLE * self._seconds, idle)
        choice = choose(probes, bench.tokens, bench.contexts, left, guess)
        if choice.thinned:
            self.found.thinned = choice.sentence(bench.tokens, bench.contexts)
            say(f"{len(choice.probes)} of {len(probes)}, {choice.seconds:.0f} s", 100)
        effort = Effort(max(left, choice.seconds))
        Sampler(self._clock, self.found.passes).measure(choice.probes, effort, percent(say))

    def _probes(self) -> Iterator[Probe[WorkPoint]]:
        subject, bench = self._subject, self._bench
        self._block = block = LayerBlock(subject.target.checkpoint, subject.layers, bench)
        yield from block.probes("block", max(bench.tokens))
        yield block.prune()
        if subject.layers > 1:
            # Behind the shortest context: a single layer's longer caches would stay in the
            # processor's, those of a block do not.
            short = replace(bench, contexts=(min(bench.contexts),))
            yield from LayerBlock(subject.target.checkpoint, 1, short).probes(
                "single", SINGLE_TOKENS
            )
        yield from Ends(subject.target.checkpoint, bench).probes()
        if subject.draft is not None:
            yield from DraftWork(subject.draft.checkpoint, bench).probes()

    @property
    def _idle_context(self) -> int:
        return min(self._bench.contexts, key=lambda context: abs(context - IDLE_CONTEXT))

    def _idle(self, say: Say) -> None:
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
        Sampler(self._clock, self.found.idle).measure(probes, effort, percent(say))


def _is_out_of_memory(error: Exception) -> bool:
    """Torch has a kind of error for a GPU's memory only."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)
