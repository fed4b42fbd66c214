"""How many targets a shared draft feeds, by StarSD's equations (``sim/theory/starsd.py``): N_full,
from which on the draft is always busy, and N_max, up to which no target is slower than alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import middle, times
from treepipe.planner.drawn import drawn_factors, in_case
from treepipe.planner.questions import QuestionAnswer, left_out
from treepipe.results.sheet import Sheet, columns, figures
from treepipe.results.statistics import Interval
from treepipe.scenario.resolve import deploy
from treepipe.scenario.rows import rows_of_formula, with_guessed_rows
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario
from treepipe.sim.theory.closed_form import ClosedForm, closed_form

SATURATION = "How many targets does a shared draft feed?"
DEEPEST = 8
Forms: TypeAlias = Mapping[int, ClosedForm]
"""The closed form of one target, by the number of drafted tokens."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """One target's rounds as stated and in cases of uncertain inputs; of the file's
    ``schedule.gamma``, else of 1 to ``DEEPEST`` drafted tokens."""

    scenario: Scenario
    stated: Forms
    inputs: Mapping[Estimated, float] = field(default_factory=dict)
    cases: Sequence[Forms] = field(default=(), repr=False)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster) -> Saturation:
        """Compute them; raises ``UserError`` if StarSD's equations do not hold for the cluster."""
        scenario = _one_target(cluster)
        last = scenario.schedule.parameters.gamma
        depths = range(last if "gamma" in cluster.fixed else 1, last + 1)
        stated, deployment = _forms(scenario, depths), deploy(scenario)
        deployment = with_guessed_rows(deployment, rows_of_formula(deployment, 1 + last))
        inputs = {of: share for of, share in deployment.estimates.items() if of.kind != "model"}
        drawn = drawn_factors(inputs, cluster.search.cases, cluster.seed) if inputs else []
        cases = [_forms(in_case(scenario, inputs, factors), depths) for factors in drawn]
        warnings = (*deployment.warnings, *stated[last].warnings)
        return cls(scenario, stated, inputs, cases, warnings)

    @property
    def fastest(self) -> int:
        """The number of drafted tokens at which one target is the fastest."""
        speed = "per_session_throughput_tokens_s"
        return max(self.stated, key=lambda drafted: self.stated[drafted].metrics[speed])

    def number(self, drafted: int, term: str) -> Interval:
        """Return ``n_full`` or ``n_max`` with the interval that inputs put on it."""
        stated, *others = (each[drafted].terms[term] for each in (self.stated, *self.cases))
        return middle(stated, others)

    def as_dict(self) -> dict[str, Any]:
        ends = {
            n: {t: self.number(n, t).as_dict() for t in ("n_full", "n_max")} for n in self.stated
        }
        return {"saturation": [{"drafted": n, **each} for n, each in ends.items()]}


def _one_target(cluster: Cluster) -> Scenario:
    """Return one target with a draft server; the others are equal to it."""
    if len(cluster.pipelines) != 1 or len(cluster.drafts) != 1:
        raise UserError(f"{cluster.path}: the question is about one draft and equal targets")
    data = cluster.content
    for key in ("search", "faults", "serving"):
        data.pop(key, None)
    schedule = {"gamma": DEEPEST, **data.get("schedule", {}), "name": "starsd"}
    lengths = {"prompt_tokens": 1, "new_tokens": 2, "requests": 1, "concurrency": 1}
    data["pipelines"][0]["count"] = data.setdefault("drafts", [{}])[0]["count"] = 1
    return Scenario.of({**data, "schedule": schedule, "workload": lengths}, cluster.path)


def _forms(scenario: Scenario, depths: Sequence[int]) -> Forms:
    try:
        return {n: closed_form(scenario.with_(**{"schedule.gamma": n})) for n in depths}
    except ZeroDivisionError:
        raise UserError(f"{scenario.path}: key drafts: a draft pass takes no time") from None


def saturation_answer(cluster: Cluster) -> QuestionAnswer:
    result = Saturation.of(cluster)
    heads = [*columns("drafted|d", "tokens|.2f", "S (ms)|.4g", "Z (ms)|.4g")]
    sheet = Sheet("Targets of one draft, by its tokens", [*heads, *figures("N_full", "N_max")])
    ends = {
        n: [times(result.number(n, term), form=".0f") for term in ("n_full", "n_max")]
        for n in result.stated
    }
    for n, each in result.stated.items():
        ms = each.terms["service_ms"], each.terms["return_ms"]
        sheet.add(n, each.metrics["tokens_per_round"], *ms, *ends[n])
    best = result.fastest
    up_to = f"up to {ends[best][1]} each is as fast as without it"
    slower = "not even one is as fast as without it"
    answer = (
        f"A draft of {best} token{'s' * (best > 1)}, with which one target is the fastest, is "
        f"always busy from {ends[best][0]} targets on; "
        f"{up_to if result.number(best, 'n_max').mean else slower}."
    )
    terms = "S is the draft's time in a round, Z the rest of it (StarSD, section 4)."
    sentences = [answer, *left_out(result)[:1], terms]
    return QuestionAnswer("saturation", SATURATION, result, sentences, sheet)
