"""How many tokens to draft, by the number of streams that decode together."""

from __future__ import annotations

from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import Depths, times
from treepipe.planner.question import Question, QuestionAnswer
from treepipe.planner.questions.worth import left_out, paying, resting
from treepipe.results.sheet import Sheet, columns, figures


def depth_table(found: Depths) -> Sheet:
    heads = columns("streams", "drafted|d", "tokens of a round|.2f", "round (ms)|.4g")
    sheet = Sheet("Tokens to draft, and the gain over plain decoding", [*heads, *figures("gain")])
    for first, last, depth in found.ranges:
        sheet.add(
            f"{first} to {last}" if last > first else f"{first}",
            depth,
            float(found.tokens[depth]),
            float(found.periods_ms[first - 1, depth]),
            times(found.gain(first, depth), "-"),
        )
    return sheet


def _answer(cluster: Cluster) -> QuestionAnswer:
    found = Depths.of(cluster)
    first = found.ranges[0]
    drafted = f"Draft {first.depth} tokens" if first.depth else "Draft nothing"
    sentences = [
        *resting(found),
        f"{drafted} for up to {first.last} streams; the table has the others, and "
        f"the speed at the first of each range.",
        paying(found),
        *left_out(found),
    ]
    content = {**found.as_dict(), "question": "depth"}
    return QuestionAnswer(found.scenario, sentences, [depth_table(found)], content, found.warnings)


QUESTION = Question("depth", "How many tokens to draft, by the number of streams?", _answer)
