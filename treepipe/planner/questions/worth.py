"""Whether drafting pays at all, and from which number of streams on it does not."""

from __future__ import annotations

from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import MOST_STREAMS, SHOWN, Depths, times
from treepipe.planner.question import Question, QuestionAnswer
from treepipe.results.sheet import Sheet, columns, figures


def paying(found: Depths) -> str:
    """Say up to how many streams drafting pays, with the interval over the cases."""
    last = found.last_paying
    spread = ""
    if last.low is not None and last.high is not None:
        spread = f" (in 95 % of {len(found.cases)} cases {last.low:.0f} to {last.high:.0f})"
    if not last.mean:
        return f"Drafting does not pay at any number of streams{spread}."
    if last.mean == MOST_STREAMS:
        return f"Drafting pays up to {MOST_STREAMS} streams, the most that were tried{spread}."
    return f"Do not speculate above {last.mean:.0f} streams{spread}."


def left_out(found: Depths) -> list[str]:
    """Say what the formula does not know."""
    known = (
        f"The intervals are of {len(found.cases)} cases of the inputs that are estimates."
        if found.cases
        else "No input states its uncertainty, so there is no interval."
    )
    return [
        known,
        "The formula leaves out prefill, queues, contexts, what further requests add to a pass "
        "(request_ms) and an engine's own work beside its passes; it takes all streams of a batch "
        "as drafting the same number of tokens.",
    ]


def _answer(cluster: Cluster) -> QuestionAnswer:
    found = Depths.of(cluster)
    heads = columns("streams|d", "tokens drafted|d", "plain decoding (tokens/s per stream)|.4g")
    heads += columns("speculating (tokens/s per stream)|.4g")
    more = columns("tokens of a round|.2f", "tokens at which it pays|.2f")
    sheet = Sheet("Worth", [*heads, *figures("speed over plain decoding"), *more])
    for streams in SHOWN:
        depth = max(1, found.best(streams))
        plain, drafting = found.periods_ms[streams - 1, [0, depth]].tolist()
        tokens, gain = float(found.tokens[depth]), times(found.gain(streams, depth))
        speeds = 1e3 / plain, 1e3 * tokens / drafting
        sheet.add(streams, depth, *speeds, gain, tokens, drafting / plain)
    alone = found.gain(1, max(1, found.best(1)))
    verdict = "pays" if alone.mean > 1 else "does not pay"
    sentences = [
        f"For one stream speculation {verdict}: {times(alone)} times the speed of plain decoding.",
        paying(found),
        *left_out(found),
    ]
    content = {**found.as_dict(), "question": "worth"}
    return QuestionAnswer(found.scenario, sentences, [sheet], content, found.warnings)


QUESTIONS = (Question("worth", "Does speculation pay here, and up to which load?", _answer),)
