"""Recordings: what draft and target answered in a run, so that it can be replayed.

Both worlds record with ``Recorder``; ``treepipe.sim`` replays a ``Recording``. An answer is keyed
by the committed tokens read and the token path below them, since a language model gives the same
answer to the same path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.files.outputs import write_file
from treepipe.files.reading import UNREADABLE, reading_fault

SCHEMA = "treepipe.recording/1"


@dataclass(frozen=True, slots=True)
class Answer:
    """The draft's candidates at one path, most probable first."""

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
        """Raises ``WriteError`` if it cannot be written."""
        content = {str(session): asdict(request) for session, request in self.requests.items()}
        whole = {"schema": SCHEMA, "complete": self.complete, "requests": content}
        write_file(path, json.dumps(whole), "--recording")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Raises ``UserError`` if the file is missing or no recording."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"key schema = {content['schema']!r}, not {SCHEMA!r}")
            requests = {int(key): _request(value) for key, value in content["requests"].items()}
            return cls(requests, bool(content.get("complete", True)))
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such recording") from None
        except KeyError as missing:
            raise UserError(f"{path}: is not a recording: key {missing} is missing") from None
        except (*UNREADABLE, TypeError, AttributeError) as error:
            raise UserError(f"{path}: is not a recording: {reading_fault(error)}") from None


class ScratchPaths:
    """Which token path each draft pass of one request answers for.

    Attributes:
        read: committed tokens that the draft has read.
    """

    def __init__(self) -> None:
        self.read = 0
        self._paths: list[tuple[int, ...]] = []

    def tokens(self, slots: Sequence[int]) -> list[int]:
        """Token of each of these scratch nodes."""
        return [self._paths[slot][-1] for slot in slots]

    def asked(self, order: DraftPass) -> list[tuple[int, ...]]:
        """Follow one pass; token path below the committed tokens per node that it answers for."""
        if order.reset:
            self._paths = []
        elif order.keep is not None:
            kept = [self._paths[slot] for slot in order.keep[order.accepted :]]
            self._paths = [path[order.accepted :] for path in kept]
            self.read += order.accepted
        self.read += len(order.catch_up)
        if order.catch_up:
            return [()]
        first = len(self._paths)
        for token, parent in zip(order.tokens, order.parents, strict=True):
            above = () if parent == NO_PARENT else self._paths[parent]
            self._paths.append((*above, token))
        return self._paths[first:]


class Recorder:
    """Listens to draft passes and texts; ``recording`` is what was heard."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._paths: dict[int, ScratchPaths] = {}

    def drafted(self, session: int, order: DraftPass, drafted: Drafted) -> None:
        """Note one pass and its answer, which is put into plain numbers."""
        request = self.recording.requests.setdefault(session, RecordedRequest(0))
        scratch = self._paths.setdefault(session, ScratchPaths())
        paths = scratch.asked(order)
        for path, tokens, log_probs in zip(paths, drafted.tokens, drafted.log_probs, strict=True):
            request.answers.append(
                Answer(scratch.read, path, tuple(map(int, tokens)), tuple(map(float, log_probs)))
            )

    def finished(self, session: int, prompt_tokens: int, text: tuple[int, ...]) -> None:
        """Note a finished request."""
        request = self.recording.requests.setdefault(session, RecordedRequest(0))
        request.prompt_tokens, request.text = prompt_tokens, text
        self._paths.pop(session, None)


def _request(content: dict[str, object]) -> RecordedRequest:
    answers = content["answers"]
    assert isinstance(answers, list)
    return RecordedRequest(
        int(str(content["prompt_tokens"])),
        tuple(content["text"]),  # type: ignore[arg-type]
        [
            Answer(a["read"], tuple(a["path"]), tuple(a["tokens"]), tuple(a["log_probs"]))
            for a in answers
        ],
    )
