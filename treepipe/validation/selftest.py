"""``treepipe calibrate selftest``: whether a device computes rightly, what its passes and messages
cost, and how well runs on it are predicted; tables, and a JSON file that an owner can send.

A part that fails on a device that nobody tried stands in the result, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from treepipe.core.messages import NO_PARENT
from treepipe.executor.measure.calibrate import check_device
from treepipe.executor.measure.device import DeviceSession, device_profile
from treepipe.executor.measure.random_model import CONFIGS, save_random_checkpoint
from treepipe.executor.measure.requests import RunRequest
from treepipe.executor.measure.run import calibrate_run, write_profile
from treepipe.executor.measure.work import Bench, Points, open_subject
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import DeviceTransfer, use
from treepipe.executor.models.families import FAMILIES
from treepipe.executor.models.stage_model import Part, StageModel
from treepipe.executor.models.supported import reason_of
from treepipe.files.toml_file import toml_text
from treepipe.profiles.library import load_host
from treepipe.progress import Progress
from treepipe.results.sheet import Sheet, columns
from treepipe.scenario.deployment import Compute
from treepipe.scenario.scenario import Scenario
from treepipe.validation.comparison import Case, compare

SCHEMA = "treepipe.selftest/1"
SCHEDULES = ("pp", "chain", "flowspec", "specpipe")
SECONDS = 50.0
"""Time for the device's profile, and for the host's."""
ROWS, CONTEXT = (1, 4, 16, 64), 64
TOLERANCE = 1e-4
"""Largest difference of states in float32 from those in float64, over the largest state."""
LAYERS, REPEATED = 2, 50
TIMES = ("predicted", "measured")
COPIED = 16, 4096
"""Rows and width of the states whose copies are timed."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A self-test of a device, whose results are in ``content`` once a part is done."""

    device: Literal["cpu", "cuda"]
    folder: Path
    seconds: float
    say: Progress
    content: dict[str, Any]

    def families(self) -> None:
        """Tell, of every family, how far states in buckets in float32 are from exact ones on the
        CPU in float64, and why they are eager if they are."""
        self.content["families"] = []
        for family in CONFIGS:
            made = save_random_checkpoint(self.folder / family, architecture=family, layers=LAYERS)
            checkpoint = Checkpoint.open(made)
            exact = _states(checkpoint, torch.float64, "cpu", graphs=False)
            away = (_states(checkpoint, torch.float32, self.device, graphs=True) - exact).abs()
            error, why = float(away.max() / exact.abs().max()), FAMILIES[checkpoint.architecture]
            self.content["families"].append(
                {"family": family, "error": error, "eager": why.uncaptured(self.device)}
            )
            if not error <= TOLERANCE:
                self.content["failed"].append(f"{family}: off by {error:.2g}")

    def copies(self) -> None:
        """Time a launch, and the copies of states to the device and back."""
        transfer, states = DeviceTransfer(Compute(self.device)), torch.randn(*COPIED)
        small, there = torch.zeros(1, device=self.device), states.to(self.device)

        def there_and_done() -> None:
            transfer.to_device(states)
            transfer.wait()

        works: dict[str, Callable[[], object]] = {
            "launch_ms": lambda: small.add_(1),
            "to_device_ms": there_and_done,
            "to_host_ms": lambda: transfer.to_host(there),
        }
        self.content["costs"] = {name: _median_ms(work) for name, work in works.items()}

    def passes(self) -> None:
        """Measure the device's profile with graphs; tell its passes with and without."""
        points = Points(tokens=ROWS, contexts=(CONTEXT,), graphs="auto")
        bench = Bench(self.device, torch.float32, points, eager=True)
        session = DeviceSession(open_subject("reference", None, bench), bench, self.seconds)
        session.run(self.say)
        profile = device_profile(session)
        write_profile(profile, "by treepipe calibrate selftest", self.folder / "device.toml")
        eager, replayed = (session.results.table(kind)[CONTEXT] for kind in ("eager", "block"))
        self.content["origin"] = profile.origin.model_dump(mode="json")
        self.content["passes"] = [
            {"rows": rows, "eager_ms": eager[rows].median, "graphs_ms": replayed[rows].median}
            for rows in replayed
        ]

    def runs(self) -> None:
        """Measure the host in place, predict the schedules, and run them."""
        place = {"host": "box", "device": {"profile": "./device.toml", "kind": self.device}}
        path, host = self.folder / "selftest.toml", self.folder / "host.toml"
        content = {
            "name": "selftest",
            "emulate": False,
            "target": {"checkpoint": "reference"},
            "drafts": [{**place, "model": {"checkpoint": "reference"}}],
            "pipelines": [{"stages": [{**place, "count": 2}]}],
            "acceptance": {"source": "profile", "name": "reference"},
            "schedule": {"name": "pp"},
            "workload": {"requests": 2, "new_tokens": 32},
        }
        path.write_text(toml_text(content), encoding="utf-8")
        request = RunRequest(scenario=str(path), seconds=self.seconds, out=host)
        calibrate_run(request, self.say)
        costs = load_host(host).model_dump(include={"wake_ms", "look_ms", "send_ms", "receive_ms"})
        self.content["host"] = costs
        base = Scenario.load(path).with_(hosts={"box": {"profile": f"./{host.name}"}})
        cases = [Case(name, base.with_(**{"schedule.name": name})) for name in SCHEDULES]
        self.content["runs"] = {}
        for row in compare(cases, self.say):
            self.content["runs"][row.label] = {
                "predicted_ms": row.predicted.mean,
                "measured_ms": row.measured,
                "error": row.error,
                "lossless": row.lossless,
            }
            if not row.lossless:
                self.content["failed"].append(f"{row.label}: not plain greedy decoding's text")


def selftest(device: Any, say: Progress, seconds: float = SECONDS) -> dict[str, Any]:
    """Try a device; return the content of the JSON file. Raises ``UserError`` without a device."""
    use(Compute(check_device(device)))
    content: dict[str, Any] = {"schema": SCHEMA, "device": device, "failed": []}
    with TemporaryDirectory() as folder:
        test = SelfTest(device, Path(folder), seconds, say, content)
        for part in (test.families, test.copies, test.passes, test.runs):
            say(part.__name__, 1)
            try:
                part()
            except Exception as error:  # nobody knows what an untried device does
                content["failed"].append(f"{part.__name__}: {reason_of(error)}")
            say("", 1)
    return {**content, "passed": not content["failed"]}


def _states(
    checkpoint: Checkpoint, dtype: torch.dtype, device: str, *, graphs: bool
) -> torch.Tensor:
    """Return the states of a text, of a tree behind it, and of a batch of what a word leaves of it,
    with more nodes, and of another text."""
    model = StageModel(checkpoint, range(LAYERS), 64, dtype, device, graphs=graphs)
    random, size = torch.Generator().manual_seed(0), (24, checkpoint.hidden_size)
    hidden = torch.randn(size, generator=random, dtype=torch.float64).to(device, dtype)
    for session in (0, 1):
        model.open(session)
    states = [model.forward(0, hidden[:5], range(5), None)]
    states.append(model.forward(0, hidden[5:11], [5, 6, 6, 7, 7, 7], [NO_PARENT, 0, 0, 1, 1, 2]))
    model.cache(0).prune((0, 1, 3, 4), 2)
    nodes = Part(0, hidden[11:13], [8, 8], [1, 0])
    states += model.forward_batch([nodes, Part(1, hidden[13:], range(11), None)])
    return torch.cat(states).double().cpu()


def _median_ms(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATED):
        start = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - start))
    return median(taken)


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """Return the self-test's tables."""
    costs = {**content.get("costs", {}), **content.get("host", {})}
    least = {name: min(at.values()) if isinstance(at, dict) else at for name, at in costs.items()}
    runs = [{"schedule": name, **row} for name, row in content.get("runs", {}).items()]
    made = [
        _sheet("States in float32", content.get("families", ()), "family", "error|.1e", "eager"),
        _sheet("A block", content.get("passes", ()), "rows|d", "eager_ms|.3g", "graphs_ms|.3g"),
        _sheet("Costs", [{"of": n, "ms": ms} for n, ms in least.items()], "of", "ms|.3g"),
        _sheet("Runs", runs, "schedule", *(f"{n}_ms|.3g" for n in TIMES), "error|+.1%", "lossless"),
    ]
    return [each for each in made if each.rows]


def _sheet(title: str, rows: Iterable[Mapping[str, Any]], *heads: str) -> Sheet:
    sheet = Sheet(title, columns(*heads))
    for row in rows:
        sheet.add(*[row[head.partition("|")[0]] for head in heads])
    return sheet
