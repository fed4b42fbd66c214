"""The value of ``serving.admission = "auto"``: N_max requests (StarSD, section 4.2)."""

from __future__ import annotations

from treepipe.core.errors import UserError
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import HIT_RATIOS, Bernoulli, PoolSection, ServingSection
from treepipe.sim.theory.closed_form import closed_form


def resolve_admission(scenario: Scenario) -> Scenario:
    """Replace ``serving.admission = "auto"`` with N_max; other scenarios stay as they are.

    N_max is the largest number of targets of which each is still as fast as plain decoding without
    the draft, by the scenario's own times and acceptance.

    Raises:
        UserError: no closed form has an N_max for it, or not even one target is as fast.
    """
    if scenario.serving.admitted != "auto":
        return scenario
    key = f"{scenario.path}: key serving.admission = 'auto'"
    if not isinstance(scenario.acceptance, Bernoulli | HIT_RATIOS | PoolSection):
        raise UserError(f"{key} needs an acceptance to reckon N_max with (key acceptance)")
    workload = scenario.workload.model_copy(
        update={
            "arrivals": None,
            "prompt_tokens": 1,
            "new_tokens": 2,
            "requests": 1,
            "concurrency": sum(pipeline.count for pipeline in scenario.pipelines),
        }
    )
    one_each = {"workload": workload, "serving": ServingSection()}
    terms = closed_form(scenario.model_copy(update=one_each)).terms
    if "n_max" not in terms:
        raise UserError(f"{key} is N_max of StarSD, not of {scenario.schedule.name!r}")
    if not terms["n_max"]:
        raise UserError(
            f"{key} is N_max = 0: with the draft not even one target is as fast as alone"
        )
    serving = scenario.serving.admitting(int(terms["n_max"]))
    return scenario.model_copy(update={"serving": serving})
