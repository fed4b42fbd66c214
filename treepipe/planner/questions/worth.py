"""Whether drafting pays at all, and from which number of streams on it does not."""

from __future__ import annotations

from itertools import pairwise

from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import ENOUGH_CASES, GOOD_ENOUGH, MOST_STREAMS, SHOWN, Depths, times
from treepipe.planner.question import Question, QuestionAnswer
from treepipe.results.sheet import Sheet, columns, figures
from treepipe.scenario.scale import Estimated


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


def resting(found: Depths) -> list[str]:
    """Say before any figure that acceptance counts as exact, unless its uncertainty is given."""
    if Estimated("acceptance") in found.inputs:
        return []
    beta = getattr(found.scenario.acceptance, "beta", None)
    value = "as given" if beta is None else f"beta = {beta:g}"
    return [
        f"What follows takes the acceptance ({value}) as exact, and rests on it: state "
        f"acceptance.uncertainty if it is a guess."
    ]


def left_out(found: Depths) -> list[str]:
    """Say what the intervals hold, and what the formula does not know."""
    of = ", ".join(f"{each} ±{share * 100:.3g} %" for each, share in found.inputs.items())
    if not found.inputs:
        known = "No input states its uncertainty, so there is no interval."
    elif len(found.cases) < ENOUGH_CASES:
        known = (
            f"Uncertain are {of}; fewer than {ENOUGH_CASES} cases (search.cases) tell no interval."
        )
    else:
        known = (
            f"An interval holds 95 % of {len(found.cases)} cases of {of}; a figure without one "
            f"hardly depends on these."
        )
    return [
        known,
        "The formula leaves out prefill, queues, contexts, what further requests add to a pass "
        "(request_ms) and an engine's own work beside its passes; it takes all streams of a batch "
        "as drafting the same number of tokens.",
    ]


def _answer(cluster: Cluster) -> QuestionAnswer:
    found = Depths.of(cluster)
    title = "Tokens/s of a stream without and with drafting, and tokens of a round"
    heads = columns("streams|d", "drafted|d", "plain|.4g", "drafting|.4g")
    sheet = Sheet(title, [*heads, *figures("gain"), *columns("tokens|.2f", "pays at|.2f")])
    gains = list[float]()
    for streams in SHOWN:
        depth = max(1, found.best(streams))
        plain, drafting = found.periods_ms[streams - 1, [0, depth]].tolist()
        tokens, gain = float(found.tokens[depth]), found.gain(streams, depth)
        gains.append(gain.mean)
        speeds = 1e3 / plain, 1e3 * tokens / drafting
        sheet.add(streams, depth, *speeds, times(gain, "-"), tokens, drafting / plain)
    alone = found.gain(1, max(1, found.best(1)))
    verdict = "pays" if alone.mean > 1 else "does not pay"
    steps = any(more > less * (1 + GOOD_ENOUGH) for less, more in pairwise(gains))
    sentences = [
        *resting(found),
        f"For one stream speculation {verdict}: {times(alone)} times the speed of plain decoding.",
        paying(found),
        *["More streams gain more in places: passes take steps with their rows."] * steps,
        *left_out(found),
    ]
    content = {**found.as_dict(), "question": "worth"}
    return QuestionAnswer(found.scenario, sentences, [sheet], content, found.warnings)


QUESTION = Question("worth", "Does speculation pay here, and up to which load?", _answer)
