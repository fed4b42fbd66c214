"""The closed form that applies to a scenario: its inputs, its figures, and its assumptions; and the
value of ``serving.admission = "auto"`` that follows from StarSD's.

A scenario without a closed form is refused with one sentence; for one that bends an assumption the
form says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.profiles.hit_ratio import depths_of
from treepipe.results.metrics import METRIC
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.passage import Passage, chunks_of
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scale import scaled_hits
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import HIT_RATIOS, Bernoulli, PoolSection, Replay, ServingSection
from treepipe.sim.acceptance_pool import acceptance_pool, acceptance_warnings
from treepipe.sim.blocks import Blocks, blocks_of
from treepipe.sim.theory import alone, layered, starsd
from treepipe.sim.theory.batched import passages_of, shares_of, tokens_s


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The figures that a closed form gives for a scenario.

    Attributes:
        form: source of the formulas.
        metrics: values by the names of ``metrics.py``, in their units.
        terms: the formulas' own quantities, with units in their names.
        warnings: assumptions that the scenario bends.
    """

    form: str
    metrics: Mapping[str, float]
    terms: Mapping[str, float]
    warnings: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The time between tokens, and what the form leaves out."""
        from treepipe.results.units import number

        value = number(self.metrics["time_between_tokens_ms"])
        bent = [each.removeprefix("the closed form ") for each in self.warnings]
        left_out = f"; it {'; it '.join(bent)}" if bent else ""
        return f"closed form ({self.form}): {value} ms between tokens{left_out}"


def closed_form(scenario: Scenario, deployment: Deployment | None = None) -> ClosedForm:
    """Compute the expected values of a scenario.

    Args:
        deployment: of the scenario; None: it is made.

    Raises:
        UserError: no closed form describes it, or something it names is wrong.
    """
    deployment = deploy(scenario) if deployment is None else deployment
    check_form(scenario, deployment)
    acceptance_warnings(scenario)  # refuses a pool that was recorded otherwise
    pool = _blocks(scenario)
    found = _form(scenario).evaluate(scenario, deployment, pool)
    bent = _bent(scenario, deployment)
    return replace(found, warnings=tuple(sorted({*found.warnings, *bent})))


def check_form(scenario: Scenario, deployment: Deployment, knows: Collection[str] = ()) -> None:
    """Raise ``UserError`` for a key that rules the form out, but for those that it ``knows``."""
    for key, reason in _refusals(scenario, deployment):
        if key not in knows:
            raise UserError(f"{scenario.path}: key {key}: no closed form applies: {reason}")


def batched_form(scenario: Scenario, deployment: Deployment, groups: int) -> Mapping[str, float]:
    """Return the figures of requests that decode together, in so many groups per pipeline.

    Raises ``UserError``: the form of batched chains does not describe the scenario.
    """
    one_each = len(deployment.roles.drafts) <= len(deployment.roles.pipelines)
    knows = ("pipelines", "workload.concurrency", *["drafts"] * one_each)
    check_form(scenario, deployment, knows)
    if _form(scenario) not in (FORMS["plain"], FORMS["chain"]):
        raise UserError(f"{scenario.path}: no closed form of several requests applies")
    users = sum(map(deployment.most_open, range(len(deployment.roles.pipelines))))
    depth = scenario.schedule.parameters.gamma if scenario.schedule.system.drafts else 0
    shares = shares_of(scenario, depth) if depth else ()
    speed = tokens_s(passages_of(deployment), users, depth, groups, shares)
    return {METRIC: 1e3 * users / speed, "throughput_tokens_s": speed}


# --- conditions ----------------------------------------------------------------------------------


def _refusals(scenario: Scenario, deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield keys that rule out a closed form, with reasons; later checks rely on earlier ones."""
    system, workload = scenario.schedule.system, scenario.workload
    if system.closed_form is None:
        able = [each.name for each in systems().values() if each.closed_form is not None]
        yield "schedule.name", f"{system.name!r} has none; {', '.join(able)} have"
    if system.closed_form not in FORMS:
        yield (
            "schedule.name",
            f"the record of {system.name!r} names {system.closed_form!r}; there are "
            f"{', '.join(FORMS)}",
        )
    is_chain = _form(scenario).rounds is alone.chain
    if isinstance(scenario.acceptance, Replay):
        yield (
            "acceptance.source",
            "a replay has one text; bernoulli, hit_ratio, stated or pool would do",
        )
    if system.drafts and _by_depth(scenario) and not is_chain:
        yield "acceptance", "it is for one share at all depths; that of 'chain' is not"
    if scenario.sampling.rule not in ("exact", "rejection"):
        yield "sampling.rule", f"{scenario.sampling.rule!r} has none; 'exact' has"
    if scenario.schedule.parameters.cut:
        yield "schedule.dynamic_length", "it is for chains of constant length"
    if len(deployment.roles.drafts) > 1:
        yield "drafts", f"it is for one draft server, not {len(deployment.roles.drafts)}"
    if not isinstance(workload.prompt_tokens, int) or not isinstance(workload.new_tokens, int):
        yield "workload", "prompt_tokens and new_tokens must be numbers, not distributions"
    for number in range(len(deployment.roles.pipelines)):
        passage = Passage(deployment, number)
        if passage.lap_ms(1) + passage.decide_ms(1) == 0:
            yield "pipelines", "a round of one token takes no time (all times are 0)"
    if scenario.serving.admission is not None:
        yield "serving.admission", "it is for requests that are all served"
    if deployment.service.cache is not None:
        yield "serving.cache", "it is for requests that need not wait for room"
    if deployment.roles.drafts[0].block:
        yield "drafts.source", "it is for a draft of one pass per token"
    if deployment.service.least_probabilities:
        yield "drafts.least_probability", "it is for a draft that proposes every candidate"
    if deployment.service.warm_up_ms is not None:
        yield "serving.warm_up_ms", "it is for a draft that runs no pass in vain"
    if any(machine.costs is not None for machine in deployment.roles.machines):
        yield "hosts", "it knows the times of devices, not what a host's profile adds to them"
    if any(placed.times.judge or placed.times.draw for placed in deployment.roles.placed):
        yield "sampling", "it leaves out what choosing tokens by this rule takes ([[sampling]])"
    if workload.arriving:
        yield "workload.arrivals", "it is for requests of a closed loop"
    elif _form(scenario).targets:
        yield from _refused_targets(scenario, deployment)
    else:
        yield from _refused_clients(deployment)


def _refused_clients(deployment: Deployment) -> Iterator[tuple[str, str]]:
    clients, pipelines = deployment.service.clients, len(deployment.roles.pipelines)
    if pipelines > 1:
        able = _named(lambda form: form.targets)
        yield "pipelines", f"it is for one pipeline, not {pipelines}; {able} has several"
    if clients > 1 and deployment.service.limit != 1:
        yield "workload.concurrency", f"it is for one request at a time, not {clients}"


def _refused_targets(scenario: Scenario, deployment: Deployment) -> Iterator[tuple[str, str]]:
    section, pipelines = scenario.schedule.parameters, len(deployment.roles.pipelines)
    branches = any(count != 1 for count in section.branching or ())
    if section.depth_range or section.tree_size or branches:
        yield "schedule", "it is for chains of constant depth"
    if deployment.service.clients != pipelines:
        yield "workload.concurrency", f"it is for one request per target, {pipelines} in all"
    if scenario.serving.queue != "fifo":
        yield "serving.queue", "it is for 'fifo'"
    rows, passages = section.gamma + 1, [Passage(deployment, n) for n in range(pipelines)]
    laps = [(passage.lap_ms(rows), passage.stage_ms(rows)) for passage in passages]
    if any(lap != laps[0] for lap in laps):
        yield "pipelines", "it is for equal targets"


def _bent(scenario: Scenario, deployment: Deployment) -> list[str]:
    """Return the assumptions of all closed forms that the scenario bends."""
    wiring, machines = deployment.wiring, deployment.roles.machines
    tables = [t for each in deployment.roles.placed for t in (each.times.stage, each.times.draft)]
    assumed = {
        "knows the mean of the links' jitter and losses, no spread": any(
            link.jitter_ms or link.loss for link in wiring.links
        ),
        "assumes that no transfer waits for another one": wiring.shares_links,
        "takes every token bucket as full": any(link.burst_bytes for link in wiring.links),
        "assumes that every role has a device of its own": any(len(m.roles) > 1 for m in machines),
        "leaves out the effect of idle gaps": any(machine.idle_factor for machine in machines),
        "assumes that no worker fails; keys of faults have no effect": bool(
            scenario.faults.model_fields_set
        ),
        "leaves out what further requests add to a pass (request_ms)": (
            deployment.service.pass_requests > 1 and any(table.request_ms for table in tables)
        ),
        "takes times without context": any(table.last_context is not None for table in tables),
    }
    found = [f"the closed form {sentence}" for sentence, bent in assumed.items() if bent]
    if isinstance(scenario.acceptance, PoolSection) and scenario.schedule.system.drafts:
        found.append(
            "the closed form assumes that acceptance at a position does not depend on the last one"
        )
        if depths := acceptance_pool(scenario)[0].depths:
            found.append(
                f"the closed form takes the pool's answers right below what is verified, and none "
                f"of the {depths} depths further down, where the draft hits less often: it "
                f"promises too many tokens per round; hit_ratio by depth (acceptance.table) counts "
                f"them"
            )
    return found


# --- the forms -----------------------------------------------------------------------------------


def _alone(scenario: Scenario, deployment: Deployment, pool: Blocks | None) -> ClosedForm:
    passage, form, section = Passage(deployment), _form(scenario), scenario.schedule.parameters
    prompt, new_tokens = _lengths(scenario)
    chunks = chunks_of(prompt, section.prefill_chunk)
    terms: dict[str, float] = {}
    if form.rounds is None:
        decoding = alone.plain(passage)
    else:
        assert pool is not None  # it drafts
        beta = terms["acceptance"] = pool.hit_ratio(1)
        decoding = form.rounds(passage, _by_depth(scenario) or beta, section.gamma, prompt)
    request = alone.Alone(passage, decoding, chunks, new_tokens)
    return ClosedForm(form.source, request.metrics(), terms, decoding.warnings)


def _shared(scenario: Scenario, deployment: Deployment, pool: Blocks | None) -> ClosedForm:
    assert pool is not None  # it drafts
    section, passage = scenario.schedule.parameters, Passage(deployment)
    targets = len(deployment.roles.pipelines)
    gamma = len(section.branching) if section.branching else section.gamma
    cycle = starsd.cycle_of(passage, pool.hit_ratio(1), gamma)
    warnings = ["the closed form is the steady state: it leaves out prefill and requests' ends"]
    ported_ms = passage.ported_ms(gamma + 1, gamma + 1)
    if targets > 1 and ported_ms > cycle.service_ms:
        warnings.append(
            f"the closed form assumes that no message waits for the draft server's port, but a "
            f"round keeps it busy for {ported_ms:.4g} ms, longer than the draft for "
            f"{cycle.service_ms:.4g} ms"
        )
    warnings += passage.bent_reading(gamma, gamma - 1)
    return ClosedForm(
        _form(scenario).source,
        starsd.shared_metrics(cycle, targets),
        starsd.shared_terms(passage, cycle, pool.hit_ratio(1), gamma),
        tuple(warnings),
    )


def _continuous(scenario: Scenario, deployment: Deployment, pool: Blocks | None) -> ClosedForm:
    assert pool is not None  # it drafts
    section, beta = scenario.schedule.parameters, pool.hit_ratio(1)
    mean, least, most = alone.continuous_ms(Passage(deployment), beta, section.gamma)
    bent = {
        f"lets the draft go on; with schedule.restart = 'every' it takes {least:.4g} to {most:.4g} "
        f"ms": section.restart == "every",
        "takes a chain of first candidates, of which a tree has more": section.top_k > 1,
        "knows no schedule.cutoff": any(section.cutoff),
        "is the steady state: it leaves out prefill and requests' ends": True,
    }
    warnings = tuple(f"the closed form {sentence}" for sentence, is_bent in bent.items() if is_bent)
    return ClosedForm(_form(scenario).source, {METRIC: mean}, {"acceptance": beta}, warnings)


def _stepped(scenario: Scenario, deployment: Deployment, pool: Blocks | None) -> ClosedForm:
    assert pool is not None  # it drafts
    section, passage = scenario.schedule.parameters, Passage(deployment)
    offered = min(section.width, section.children)
    prompt, new_tokens = _lengths(scenario)
    chunks = chunks_of(prompt, section.prefill_chunk)
    parallel = section.parallel_prefill and not deployment.roles.reads_states
    prefill, read = layered.prefill_ms(passage, chunks, parallel=parallel)
    steps = layered.steps_of(passage, section.width, read)
    # With a single group the tree is its root alone whenever the target's token is known.
    hit = pool.hit_ratio(offered) if len(steps.groups) > 1 else 0.0
    warnings = layered.bent(passage, steps, section.width, len(chunks))
    if pool.hit_ratio(1) < hit:
        warnings.append(
            f"the closed form takes P(w) to be the share of tokens among the draft's first "
            f"{offered}, of which other branches may crowd some out: an upper bound"
        )
    if section.layers_per_step > 1 or not section.draft_reuse:
        warnings.append("the closed form assumes one layer per step and a draft that is reused")
    if scenario.workload.requests > 1:
        warnings.append("the closed form assumes that every request finds an empty pipeline")
    return ClosedForm(
        _form(scenario).source,
        layered.stepped_metrics(steps, hit, prefill, new_tokens),
        layered.stepped_terms(steps, hit),
        tuple(warnings),
    )


def _lengths(scenario: Scenario) -> tuple[int, int]:
    workload = scenario.workload
    assert isinstance(workload.prompt_tokens, int)
    assert isinstance(workload.new_tokens, int)  # checked before
    return workload.prompt_tokens, workload.new_tokens


def _by_depth(scenario: Scenario) -> tuple[float, ...] | None:
    """Hit ratios of the first candidate by depth; None if acceptance is the same at all depths."""
    table = scenario.acceptance.table if isinstance(scenario.acceptance, HIT_RATIOS) else {}
    if depths_of(table) == 1:
        return None
    return scaled_hits(scenario, table)[min(table)]


def _blocks(scenario: Scenario) -> Blocks | None:
    if not scenario.schedule.system.drafts:
        return None
    if scenario.acceptance is None:
        raise UserError(f"{scenario.path}: key acceptance is missing; a prediction needs a source")
    return blocks_of(*acceptance_pool(scenario))


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """A closed form that records of systems may name.

    Attributes:
        source: publication, with the place of the formulas.
        rounds: function of ``alone`` that gives a request's rounds from passage, acceptance, gamma
            and prompt; None: plain decoding.
        targets: whether it models several targets with a request each, instead of one pipeline.
    """

    source: str
    evaluate: Callable[[Scenario, Deployment, Blocks | None], ClosedForm]
    rounds: Callable[[Passage, Any, int, int], alone.Decoding] | None = None
    targets: bool = False


FORMS: Mapping[str, Form] = {
    "plain": Form("PipeDec, section 2.2", _alone),
    "chain": Form("Leviathan et al. 2023, eq. 1, over a pipeline", _alone, alone.chain),
    "chain_ahead": Form("DSD, section 3", _alone, alone.chain_ahead),
    "continuous": Form("PipeInfer's code, a chain", _continuous),
    "star": Form("StarSD, eq. 3-12", _shared, targets=True),
    "pipedec": Form("PipeDec, section 2.3", _stepped),
    "specpipe": Form("SpecPipe, eq. 1-2", _stepped),
    "spd": Form("SPD: a hit takes one cycle, a miss one per stage", _stepped),
}


def _form(scenario: Scenario) -> Form:
    """The form of the scenario's system, which has one."""
    assert scenario.schedule.system.closed_form is not None
    return FORMS[scenario.schedule.system.closed_form]


def _named(wanted: Callable[[Form], bool]) -> str:
    found = [each for each in systems().values() if each.closed_form in FORMS]
    return ", ".join(each.name for each in found if wanted(FORMS[each.closed_form or ""]))


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
