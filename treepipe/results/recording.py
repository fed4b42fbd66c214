"""Recordings of the answers of draft and target in a run, for replay.

Both worlds record with ``Recorder``; ``treepipe.sim`` replays a ``Recording``. The key of an answer
is the number of committed tokens read and the token path below them, since a language model gives
the same answer to the same path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.requests import numbered
from treepipe.core.scratch import Scratch
from treepipe.files.outputs import write_file
from treepipe.files.reading import parse_json, read_text, reading

SCHEMA = "treepipe.recording/1"


@dataclass(frozen=True, slots=True)
class Answer:
    """The draft's candidates at one path, most probable first; -inf as in ``Drafted`` if none."""

    read: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(slots=True)
class RecordedRequest:
    """One request: its prompt's length, the text, and all draft answers."""

    prompt_tokens: int
    text: tuple[int, ...] = ()
    answers: list[Answer] = field(default_factory=list)


@dataclass(slots=True)
class Recording:
    """Requests by session number; not ``complete`` if their run failed underway."""

    requests: dict[int, RecordedRequest] = field(default_factory=dict)
    complete: bool = True

    def save(self, path: Path) -> None:
        """Write the file. Raises ``WriteError`` if it cannot be written."""
        content = {str(session): asdict(request) for session, request in self.requests.items()}
        whole = {"schema": SCHEMA, "complete": self.complete, "requests": content}
        write_file(path, json.dumps(whole), "--recording")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file. Raises ``UserError`` if it is missing or no recording."""
        with reading(path, "is not a recording", "recording", (TypeError, AttributeError)):
            content = parse_json(read_text(path), endless=True)
            if content["schema"] != SCHEMA:
                raise ValueError(f"key schema = {content['schema']!r}, not {SCHEMA!r}")
            requests = {int(key): _request(value) for key, value in content["requests"].items()}
            return cls(requests, bool(content.get("complete", True)))


NO_TOKEN = 1
"""Token of an answer without candidates."""


class Recorder:
    """Records draft passes and texts in ``recording``."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._scratch: dict[int, tuple[int, Scratch[None]]] = {}

    def drafted(self, session: int, order: DraftPass, drafted: Drafted) -> None:
        """Record one pass and its answer, converted to plain numbers.

        A request that was preempted is read again under another session; its answers stay.
        """
        _, number = numbered(session)
        request = self.recording.requests.setdefault(number, RecordedRequest(0))
        known, scratch = self._scratch.get(number, (session, Scratch()))
        if known != session:  # the request begins again
            scratch = Scratch()
        self._scratch[number] = session, scratch
        followed = scratch.follow(order)
        paths = followed.asked if order.top_k else []
        for path, tokens, log_probs in zip(paths, drafted.tokens, drafted.log_probs, strict=True):
            request.answers.append(
                Answer(scratch.read, path, tuple(map(int, tokens)), tuple(map(float, log_probs)))
            )

    def finished(self, session: int, prompt_tokens: int, text: tuple[int, ...]) -> None:
        """Record a finished request."""
        request = self.recording.requests.setdefault(session, RecordedRequest(0))
        request.prompt_tokens, request.text = prompt_tokens, text
        self._scratch.pop(session, None)


def _request(content: dict[str, Any]) -> RecordedRequest:
    answers = [_answer(**answer) for answer in content["answers"]]
    return RecordedRequest(int(str(content["prompt_tokens"])), tuple(content["text"]), answers)


def _answer(
    read: int, path: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]
) -> Answer:
    """Read an answer of a file; one without candidates becomes ``Drafted``'s form of none."""
    if len(tokens) != len(log_probs):
        raise ValueError(f"an answer has {len(tokens)} tokens and {len(log_probs)} log_probs")
    if not tokens:
        tokens, log_probs = (NO_TOKEN,), (-inf,)
    return Answer(read, tuple(path), tuple(tokens), tuple(log_probs))
