"""The workers of a run without their processes: each serves in turn, on messages in memory that
pass the gates of a run."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.worlds.deployments import worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.core.recovery import Journal
from treepipe.core.requests import Assignment
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.run.draft_worker import DraftWorker, LevelWorker
from treepipe.executor.run.stage_worker import StageWorker
from treepipe.executor.wire.envelope import Envelope, gate_of
from treepipe.executor.wire.mailbox import Received
from treepipe.executor.wire.records import Finished, Open
from treepipe.executor.wire.role import RoleSettings
from treepipe.results.recording import Recording
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.schema import SourceSection


def drafting_roles(
    target: Checkpoint, model: Path | None, deployment: Deployment, source: str, **settings: Any
) -> list[RoleSettings]:
    """The deployment's workers with a draft of this source and checkpoint.

    Args: ``settings``: keys of the draft, and changes of every role's settings.
    """
    keys = {key: settings.pop(key) for key in settings.keys() & SourceSection.model_fields.keys()}
    section = SourceSection(source=source, **keys)
    roles = worker_roles((target.directory, model or target.directory), deployment, **settings)
    draft = replace(roles[0].source, section=section)
    # A look-up answers with a distribution over all of the vocabulary.
    return [replace(role, source=draft, vocabulary=target.vocabulary) for role in roles]


class _Line:
    """Keeps what a draft server tells its controller; its clock stands still."""

    def __init__(self) -> None:
        self.finished: list[Finished] = []

    def say(self, record: object) -> None:
        if isinstance(record, Finished):
            self.finished.append(record)

    def now_ms(self) -> float:
        return 0.0

    def wake(self, at_ms: float) -> None: ...

    def spend(self, start_ms: float, emulated_ms: float) -> float:
        return 0.0


class LocalStation:
    """Takes the place of a station."""

    called, fresh = False, True

    def __init__(self, settings: RoleSettings, boxes: Mapping[str, deque[Received]]) -> None:
        self.settings, self._boxes = settings, boxes
        self.line = self.clock = _Line()
        self.sent = list[tuple[Any, torch.Tensor | None]]()

    def send(self, receiver: str, message: Any, hidden: torch.Tensor | None = None) -> None:
        shape = (0, 0) if hidden is None else tuple(hidden.shape)
        own = self.settings.placed.name
        self.sent.append((message, hidden))
        self._boxes[receiver].append(
            Received(Envelope(own, receiver, 0.0, 0.0, message, *shape), hidden)
        )

    def due(self) -> Received | None:
        box = self._boxes[self.settings.placed.name]
        if not box:
            return None
        received = box.popleft()
        assert gate_of(self.settings).fault(received.envelope) is None
        return received

    def wait(self, until_ms: float | None = None) -> Received | None:
        return self.due()

    def woken(self, at_ms: float | None) -> bool:
        return False

    def enter(self, kind: str, *of: int) -> None: ...

    @contextmanager
    def work(self, *of: Any) -> Iterator[float]:
        yield 1.0


class LocalRun:
    """All requests of a deployment, decoded at once.

    Attributes:
        requests: their traces, in order.
        recording: what the draft server has recorded.
    """

    def __init__(
        self,
        roles: Sequence[RoleSettings],
        prepare: Callable[[DraftWorker], None] = lambda d: None,
        *,
        pipelined: bool = False,
    ) -> None:
        """Make the workers and serve until every request is over; ``prepare`` is called with the
        draft server before that. A segment passes all stages at a time, or one if ``pipelined``."""
        boxes: Mapping[str, deque[Received]] = defaultdict(deque)
        self.stations = {role.placed.name: LocalStation(role, boxes) for role in roles}
        stations: list[Any] = [*self.stations.values()]
        kinds = {"draft": DraftWorker, "level": LevelWorker, "stage": StageWorker}
        draft, *stages = [kinds[each.settings.kind](each) for each in stations]
        assert isinstance(draft, DraftWorker)
        prepare(draft)
        deployment, journal = roles[0].deployment, Journal()
        for number, spec in enumerate(deployment.requests):
            held = journal.open(number + 1, len(spec.prompt), Assignment(number, 0.0, 0))
            draft.open(Open(held, deployment.service.new_schedule, spec, 0.0))
        draft.serve()
        while any(boxes.values()):
            for worker in (draft, *stages[::-1]) if pipelined else (*stages, draft):
                worker.serve()
        assert not any(worker.open_sessions for worker in (*stages, draft))
        finished = {each.trace.session: each for each in stations[0].line.finished}
        self.requests = [finished[session].trace for session in sorted(finished)]
        self.recording = Recording({number: each.recorded for number, each in finished.items()})
        self._asked = deployment.requests

    @property
    def texts(self) -> list[tuple[int, ...]]:
        return [request.tokens for request in self.requests]

    def assert_greedy(self, target: Path) -> None:
        """Every request has the text that ``generate()`` of the whole model gives."""
        for spec, text in zip(self._asked, self.texts, strict=True):
            assert list(text) == greedy(target, list(spec.prompt), spec.max_new_tokens)
