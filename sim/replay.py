"""A recorded run's draft and target, answering again: only durations can differ.

An answer belongs to a place: the text up to where a token path leaves it, and the path from there.
So a schedule whose order of passes depends on timing (``flowspec_free``, ``dsd``) finds the answers
although it asks from other roots. For a place without a recorded answer, that of another place as
far off the text is borrowed, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from treepipe.core.errors import RunError
from treepipe.core.messages import NO_TOKEN
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.requests import numbered
from treepipe.core.scratch import Scratch
from treepipe.results.recording import Answer, RecordedRequest, Recording
from treepipe.sim.acceptance import Oracle

Place: TypeAlias = tuple[int, tuple[int, ...]]
"""Tokens of prompt and text before the path leaves the text, and the path from there."""


class ReplaySource:
    """Answers as in a recorded run, request by request.

    Attributes:
        asked, borrowed: number of answers so far, and of those from other places.
    """

    def __init__(self, recording: Recording) -> None:
        self._requests = [recording.requests[key] for key in sorted(recording.requests)]
        self.asked = self.borrowed = 0

    def open(self, session: int, prompt_tokens: int, levels: int = 0) -> Oracle:
        """Return the recorded request of the session's number (from 1), cyclically.

        Raises:
            RunError: the recording is empty, or the request's prompt has another length.
        """
        if not self._requests:
            raise RunError("the recording holds no request")
        _, number = numbered(session)
        request = self._requests[(number - 1) % len(self._requests)]
        if request.prompt_tokens != prompt_tokens:
            raise RunError(
                f"request {number} has a prompt of {prompt_tokens} tokens, "
                f"the recorded one of {request.prompt_tokens}"
            )
        return ReplayOracle(request, self, levels)

    def warnings(self) -> list[str]:
        if not self.borrowed:
            return []
        return [
            f"{self.borrowed} of {self.asked} draft answers are not in the recording; "
            f"those of other places were taken"
        ]


class ReplayOracle:
    whole = False  # the recorded text and answers say what was kept

    def __init__(self, request: RecordedRequest, source: ReplaySource, levels: int = 0) -> None:
        """Replay a request; ``levels`` as of ``AcceptanceSource.open``."""
        self._levels = levels
        self._prompt, self._text, self._source = request.prompt_tokens, [*request.text], source
        self._scratch = Scratch[None]()
        self._answers: dict[Place, Answer] = {}
        self._by_steps: dict[int, list[Answer]] = {}
        for answer in request.answers:
            place = self._place(answer.read, answer.path)
            known = self._answers.setdefault(place, answer)
            if len(answer.tokens) > len(known.tokens):  # another session's tree was wider there
                self._answers[place] = answer
            self._by_steps.setdefault(len(place[1]), []).append(answer)

    def truth(self, index: int) -> int:
        return self._text[index] if index < len(self._text) else NO_TOKEN

    def rewrite(self, index: int, token: int) -> None:
        self._text[index] = token

    def kept(self, first: int, index: int) -> bool:
        raise AssertionError("what was kept is recorded")

    def draft(self, order: DraftPass) -> Drafted:
        paths = self._scratch.follow(order).asked
        if not order.top_k:
            return Drafted(order.ticket, (), ())
        found = [self._answer(self._place(self._scratch.read, path)) for path in paths]
        widest = min(order.top_k, *(len(each.tokens) for each in found))
        tokens = [each.tokens[:widest] for each in found]
        return Drafted(order.ticket, tokens, [each.log_probs[:widest] for each in found])

    def _place(self, read: int, path: Sequence[int]) -> Place:
        if self._levels:  # a block's answers are those of a level below its newest token
            return read, (NO_TOKEN,) * len(path)
        first = read - self._prompt
        agreed = 0
        while agreed < len(path) and path[agreed] == self.truth(first + agreed):
            agreed += 1
        return read + agreed, tuple(path[agreed:])

    def _answer(self, place: Place) -> Answer:
        self._source.asked += 1
        found = self._answers.get(place)
        if found is None:
            if not self._by_steps:
                raise RunError(
                    "the recorded run drafted nothing; a schedule that drafts cannot replay it"
                )
            self._source.borrowed += 1
            steps = min(len(place[1]), max(self._by_steps))
            while steps not in self._by_steps:
                steps -= 1
            others = self._by_steps[steps]
            found = others[hash(place) % len(others)]
        return found
