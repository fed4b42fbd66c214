"""A timeless pipeline whose messages travel as a run's do, through real ends of links, on a wire
that brings them late, twice, and in any order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from treepipe.core.messages import Beat, Close, Flight, Message, Through
from treepipe.executor.addresses import LOOPBACK
from treepipe.executor.clock import now_ms
from treepipe.executor.mailbox import TOKEN_BYTES, Gate, Inbox, Outbox
from treepipe.executor.transport import ZeroMQ
from treepipe.testing.pipeline import Event, TimelessPipeline
from treepipe.testing.timeless_world import TimelessWorld

TOKEN = bytes(range(TOKEN_BYTES))
ENDS = "sender", "receiver"
TRANSPORT = ZeroMQ()


class Wire:
    """Takes the place of an outbox's channel: what was sent is on the way."""

    def __init__(self) -> None:
        self.under_way: list[list[bytes]] = []

    def send(self, *frames: Any) -> None:
        self.under_way.append([bytes(frame) for frame in frames])


class PostedBox(deque[Message]):
    """One link. What ``popleft`` hands out came out of the inbox; as a deque it holds what was sent
    and is not yet handed out, so that a test sees what is under way."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        super().__init__()
        self._choose, self._wire = choose, Wire()
        names = frozenset(ENDS[:1]), frozenset(ENDS[1:])
        gate = Gate(TOKEN, *names, (Flight, Beat, Through, Close), 1, 9999, names[0], waits=False)
        self._outbox = Outbox(TRANSPORT, f"tcp://{LOOPBACK}:9", ENDS, None, TOKEN)
        self._outbox.close()
        self._outbox._channel = self._wire  # type: ignore[assignment]
        self.inbox = Inbox(TRANSPORT, 0, ENDS[1], gate=gate)
        self.sent_again = 0

    def append(self, message: Message) -> None:
        super().append(message)
        self._outbox.send(message, now_ms(), 0)

    def popleft(self) -> Message:
        """The next message that is let in, however many others come before it."""
        while (received := self.inbox.get_due(now_ms())) is None:
            self._arrive()
        expected = super().popleft()
        assert received.message == expected, "what was sent first is let in first"
        return received.message

    def _arrive(self) -> None:
        """Any message that is under way comes, and may come again."""
        place = self._choose(len(self._wire.under_way))
        frames = self._wire.under_way.pop(place)
        if self._choose(3) == 0:
            self.sent_again += 1
            self._wire.under_way.append(frames)
        self.inbox.take(frames)

    def end(self) -> Counter[str]:
        """All that is still under way comes; returns what was not let in."""
        while self._wire.under_way:
            self.inbox.take(self._wire.under_way.pop())
        assert self.inbox.get_due(now_ms()) is None
        self.inbox.close()
        return self.inbox.dropped


class PostedWorld(TimelessWorld):
    """Its pipelines' boxes are links."""

    def new_pipeline(self, stages: int) -> TimelessPipeline:
        pipeline = super().new_pipeline(stages)
        boxes: dict[Event, deque[Message]] = {box: PostedBox(self.choose) for box in pipeline.boxes}
        pipeline.boxes = boxes
        return pipeline

    def links(self) -> Iterator[PostedBox]:
        """All of them."""
        for pipeline in self.pipelines:
            for box in pipeline.boxes.values():
                assert isinstance(box, PostedBox)
                yield box
