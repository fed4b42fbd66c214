"""A source that records what another one answers, so that a simulated run can be replayed."""

from __future__ import annotations

from treepipe.core.protocol import Drafted, DraftPass
from treepipe.results.recording import Recorder, Recording
from treepipe.results.trace import Trace
from treepipe.sim.acceptance import AcceptanceSource, Oracle


class RecordingSource:
    """Listens to another source, so that a simulated run can be replayed."""

    def __init__(self, inner: AcceptanceSource) -> None:
        self._inner, self._recorder = inner, Recorder()

    def open(self, session: int, prompt_tokens: int, levels: int = 0) -> Oracle:
        return RecordingOracle(
            self._inner.open(session, prompt_tokens, levels), self._recorder, session
        )

    def recording(self, trace: Trace) -> Recording:
        """What was heard in the run of this trace."""
        for request in trace.requests:
            self._recorder.finished(request.session, request.prompt_tokens, request.tokens)
        return self._recorder.recording


class RecordingOracle:
    """Another oracle's answers, noted on the way."""

    def __init__(self, inner: Oracle, recorder: Recorder, session: int) -> None:
        self._inner, self._recorder, self._session = inner, recorder, session
        self.truth, self.rewrite = inner.truth, inner.rewrite
        self.whole, self.kept = inner.whole, inner.kept

    def draft(self, order: DraftPass) -> Drafted:
        drafted = self._inner.draft(order)
        self._recorder.drafted(self._session, order, drafted)
        return drafted
