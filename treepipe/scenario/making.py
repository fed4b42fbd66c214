"""Comparison of how an acceptance was made with the scenario's sampling and drafts.

Invariant: an acceptance of other sampling or of another draft is never used silently. It is used
where it matches, used by a stated rule with a warning, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.section import Beside
from treepipe.profiles.pool_file import Made
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import (
    HIT_RATIOS,
    Bernoulli,
    PoolSection,
    SamplingSection,
    SourceSection,
)
from treepipe.scenario.stated import Stated

READS = {"relaxed_best": "exact", "block": "rejection"}
"""Rules that have no pool of their own, and the rule whose pool a simulation takes instead."""
INLINE = str.maketrans("()", "[]", " ")
"""Python's tuples as TOML's lists."""
ANY = SourceSection()
"""A draft about which the scenario says nothing."""


def provenance(sampling: SamplingSection, draft: SourceSection, prompts: str) -> Made:
    """Return the record of a pool: only the keys that are read, so that equal settings compare
    equal.

    >>> provenance(SamplingSection(top_k=5), SourceSection(source="ngram"), "a.json")
    Made(sampling={'temperature': 0.0, 'rule': 'exact'}, draft={'source': 'ngram', 'ngram': 3}, \
prompts='a.json')
    """
    own = {"source": draft.source, **asdict(draft.parameters)}
    return Made({key: getattr(sampling, key) for key in _keys_read(sampling)}, own, prompts)


def _keys_read(sampling: SamplingSection) -> list[str]:
    """Return the keys whose effect no other key of the table takes away."""
    return [
        name
        for name, field in SamplingSection.model_fields.items()
        if all(each.holds(sampling) for each in field.metadata if isinstance(each, Beside))
    ]


def making_warnings(scenario: Scenario, made: Made) -> list[str]:
    """Warn of the rule by which a pool made otherwise is used; raise ``UserError`` without one."""
    return [*_of_drafts(scenario, made), *_of_sampling(scenario, made)]


def share_warnings(scenario: Scenario) -> list[str]:
    """Warn of what an acceptance with a single share omits where trees branch."""
    acceptance = scenario.acceptance
    one_share = isinstance(acceptance, Bernoulli) or (
        isinstance(acceptance, HIT_RATIOS) and len(acceptance.table) == 1
    )
    children = scenario.schedule.parameters.candidates().values()
    if not one_share or max(children, default=1) == 1:
        return []
    return [
        "key acceptance states one share, so that of a tree's siblings only the first is ever the "
        "target's token: trees gain little over chains and schedules come out alike; shares of "
        "several k (acceptance.source = 'hit_ratio') or a recorded pool tell what they are worth"
    ]


def depth_warnings(scenario: Scenario) -> list[str]:
    """Warn of levels that an acceptance of counted chains says nothing about."""
    acceptance, system = scenario.acceptance, scenario.schedule.system
    if not isinstance(acceptance, Stated):
        return []
    lengths = scenario.schedule.parameters.lengths()
    longest, counted = max(lengths.values(), default=0), acceptance.counted
    ahead = scenario.schedule.parameters.drafts_ahead or not lengths
    if ahead or longest > counted:
        drafts = "may draft deeper" if ahead else f"drafts {longest} ({', '.join(lengths)})"
        return [
            f"key acceptance is of chains of {counted} tokens, {system.name} {drafts}: further "
            f"down the last known share is taken to hold, an extrapolation"
        ]
    if longest < counted and acceptance.per_position is None:
        return [
            f"key acceptance is one number, of chains of {counted} tokens, {system.name} drafts "
            f"{longest}: a share that is the same at every depth understates shorter chains where "
            f"the draft is right more often at its first tokens; per_position would tell"
        ]
    return []


def taken_as_exact(scenario: Scenario) -> list[str]:
    """Name the acceptance, where the scenario fixes its shares and states no uncertainty."""
    acceptance = scenario.acceptance
    given = scenario.content.get("acceptance", {})
    of_profile = given.get("source") == "profile" and "hit_ratio" not in given
    if of_profile or not scenario.schedule.system.drafts:
        return []
    if isinstance(acceptance, Bernoulli):
        shares = f"beta = {acceptance.beta:g}"
    elif isinstance(acceptance, HIT_RATIOS):
        shares = f"source {acceptance.source}"
    elif isinstance(acceptance, PoolSection) and acceptance.hit_ratio:
        shares = "key acceptance.hit_ratio"
    else:
        return []
    if acceptance.uncertainty is not None:
        return []
    return [
        f"acceptance ({shares}), as nothing states its uncertainty (acceptance.uncertainty): no "
        f"interval includes it"
    ]


def stated_warnings(scenario: Scenario) -> list[str]:
    """Warn of the conditions that an acceptance must satisfy but does not record."""
    made = provenance(scenario.sampling, ANY, "").sampling
    with_rule = Beside("rule", (scenario.sampling.rule,))
    if not any(with_rule in field.metadata for field in SamplingSection.model_fields.values()):
        del made["rule"]  # the world applies it itself
    keys = {f"sampling.{key}": value for key, value in made.items()}
    for index, draft in enumerate(scenario.drafts):
        own = provenance(scenario.sampling, draft, "").draft
        keys |= {f"drafts.{index}.{key}": value for key, value in own.items()}
    said = {key: value for key, value in keys.items() if value not in (0.0, ANY.source)}
    if not said:
        return []
    return [f"acceptance is as key acceptance gives it, which must be of {_say(said)}"]


def _of_drafts(scenario: Scenario, made: Made) -> Iterator[str]:
    for index, draft in enumerate(scenario.drafts):
        key = f"drafts.{index}.source"
        wanted = provenance(scenario.sampling, draft, "").draft
        if made.draft == wanted:
            continue
        if not made.draft:
            if draft.source != ANY.source:
                yield f"the pool does not say what drafted; it is taken to be of {_say(wanted)}"
        elif "source" not in draft.model_fields_set:
            yield (
                f"key {key} is not given; the pool's answers are taken, which are of "
                f"{_say(made.draft)}"
            )
        elif _to_reach(scenario):
            yield (
                f"the pool was recorded of {_say(made.draft)}, not of {_say(wanted)}; its passages "
                f"are drawn to reach acceptance.hit_ratio, which is taken to be of the latter"
            )
        else:
            raise UserError(
                f"{scenario.path}: key {key} = {draft.source!r}: the pool was recorded of "
                f"{_say(made.draft)}; {_how_to_record(scenario, draft)}"
            )


def _of_sampling(scenario: Scenario, made: Made) -> Iterator[str]:
    sampling = scenario.sampling
    wanted = provenance(sampling, ANY, "").sampling
    if made.sampling == wanted:
        return
    if made.sampling == {**wanted, "rule": "exact"} and sampling.rule == "relaxed_best":
        yield (
            "sampling.rule = 'relaxed_best': of a pool of rule 'exact' the first candidate is "
            "taken where none is the target's token"
        )
        return
    if made.sampling == {**wanted, "rule": "rejection"} and sampling.rule == "block":
        return  # it has the ratios by which a chain is judged, or a warning says that it has none
    if _to_reach(scenario):
        yield (
            f"the pool was recorded with {_say(made.sampling)}, not with {_say(wanted)}; its "
            f"passages are drawn to reach acceptance.hit_ratio, which is taken to be of the latter"
        )
        return
    raise UserError(
        f"{scenario.path}: table [sampling] says {_say(wanted)}, but the pool was recorded with "
        f"{_say(made.sampling)}; {_how_to_record(scenario, scenario.drafts[0])}"
    )


def _to_reach(scenario: Scenario) -> bool:
    """Return whether passages are drawn to reach given hit ratios, so that any pool will do."""
    acceptance = scenario.acceptance
    return isinstance(acceptance, PoolSection) and bool(acceptance.hit_ratio)


def _how_to_record(scenario: Scenario, draft: SourceSection) -> str:
    """Return the command that would record a suitable pool."""
    made = provenance(scenario.sampling, draft, "")
    rule = made.sampling["rule"]
    given = {f"sampling.{key}": value for key, value in made.sampling.items()}
    given["sampling.rule"] = READS.get(rule, rule)
    given |= {f"drafts.{key}": value for key, value in made.draft.items()}
    fields = {"sampling": SamplingSection.model_fields, "drafts": SourceSection.model_fields}
    options = [
        f"--set {key}={str(value).translate(INLINE)}"
        for key, value in given.items()
        for table, _, name in [key.partition(".")]
        if fields[table][name].default != value
    ]
    return f"record one so: treepipe calibrate acceptance {' '.join(options)} --out FILE.toml"


def _say(keys: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in keys.items())
