"""The first question of several boxes, by the closed form of batched chains: layers, tensors or
copies of the model, with drafts or without, for one user and for several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log
from typing import Any

import numpy as np

from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import chain_shares, middle
from treepipe.planner.drawn import drawn_factors, in_case
from treepipe.planner.layouts import PLACED, laid_out
from treepipe.planner.partition import partitions
from treepipe.planner.questions import QuestionAnswer, left_out
from treepipe.planner.splits import Split, implied_placements, splits
from treepipe.results.sheet import Sheet, columns, figures
from treepipe.results.statistics import ROUNDING
from treepipe.results.units import in_brackets, number
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.passage import Passage
from treepipe.scenario.resolve import deploy, resolve
from treepipe.scenario.rows import MEASURE, rows_of_formula, with_guessed_rows
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario
from treepipe.sim.theory.batched import drafting_ms, passages_of, tokens_s
from treepipe.sim.theory.closed_form import check_form

SPLIT = "Layers, tensors or a copy of the model on each box: which split is the fastest?"
KNOWN = ("drafts", "drafts.source", "pipelines", "workload", "workload.concurrency")
"""Keys that rule out other closed forms."""
SEVERAL = 8
"""Users of all boxes together, where the file has one."""
NEAR, SURE = 0.75, 0.95
"""Share of the fastest split's speed from which a search tries a split; and share of the cases in
which a split must be the faster one, or else it is a tie."""
MEASUREMENTS = {
    "acceptance": "count accepted and drafted tokens of your texts (acceptance.accepted, drafted)",
    "link": "`treepipe calibrate links`, or of an engine's hop `treepipe profiles import hop "
    "ONE.json SPLIT.json`, would settle it",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """What a split does for all users together, in the way that is the fastest as stated: with so
    many drafted tokens, in so many groups of users per pipeline, of so many rows each."""

    tokens_s: float
    drafted: int
    groups: int
    rows: int
    cases: Sequence[float] = ()

    def __str__(self) -> str:
        return number(self.tokens_s) + in_brackets(middle(self.tokens_s, self.cases), what="")


@dataclass(frozen=True, slots=True)
class Option:
    """A split with its rates by number of users, or why it cannot be.

    Attributes:
        draft: the draft's place; empty: nothing is drafted.
        parts: shares of one user's round by what takes them.
    """

    split: Split
    draft: str
    scenario: Scenario
    refusal: str = ""
    rates: Mapping[int, Rate] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[Estimated, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.dealt}, {f'draft {self.draft}' if self.draft else 'no drafts'}"

    @property
    def dealt(self) -> str:
        """The split in words, with the layers of a copy's stages where they are unequal."""
        layers = [s.layers for s in self.scenario.pipelines[0].stages for _ in range(s.count)]
        return f"{self.split}{f' {layers}' * (len({*layers}) > 1)}"

    def speed(self, users: int) -> float:
        return self.rates[users].tokens_s if users in self.rates else 0.0

    def as_dict(self) -> dict[str, Any]:
        rates = [
            {**asdict(rate), "users": users, **middle(rate.tokens_s, rate.cases).as_dict()}
            for users, rate in self.rates.items()
        ]
        sizes = {name: getattr(self.split, name) for name in ("replicas", "stages", "tensor")}
        known = {"draft": self.draft or None, "refusal": self.refusal or None}
        return {"split": self.dealt, **sizes, **known, "rates": rates, "parts": dict(self.parts)}


@dataclass(frozen=True, slots=True)
class Splits:
    """All options, and the uncertain inputs in their cases."""

    scenario: Scenario
    users: int
    options: Sequence[Option]
    inputs: Mapping[Estimated, float]
    cases: Sequence[Mapping[Estimated, float]]

    def ranked(self, users: int) -> list[Option]:
        """Return the options that can be, the fastest first; one user has no use of copies."""
        able = [e for e in self.options if users in e.rates and not users == 1 < e.split.replicas]
        return sorted(able, key=lambda each: -each.speed(users))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the fastest options."""
        first = [each for users in (1, self.users) for each in self.ranked(users)[:1]]
        return tuple(dict.fromkeys(sentence for each in first for sentence in each.warnings))

    def as_dict(self) -> dict[str, Any]:
        return {"splits": [option.as_dict() for option in self.options]}


def find_splits(cluster: Cluster, cases: int) -> Splits:
    """Rate all splits; raises ``UserError`` if something that the cluster names is wrong, or none
    of them fits."""
    users = _users(cluster) if _users(cluster) > 1 else SEVERAL
    best = dict[tuple[str, str], Option]()
    for split, draft, scenario in _scenarios(cluster):
        option, key = _rated(Option(split, draft, scenario), users), (str(split), draft)
        best[key] = max(best.get(key, option), option, key=lambda each: each.speed(1))
    if not any(option.rates for option in best.values()):
        raise UserError(f"{cluster.path}: {next(iter(best.values())).refusal}")
    inputs = dict[Estimated, float]()
    for option in best.values():
        inputs |= {of: max(u, inputs.get(of, 0.0)) for of, u in option.inputs.items()}
    drawn = drawn_factors(inputs, cases, cluster.seed) if inputs and cases else []
    options = [_in_cases(option, drawn) for option in best.values()]
    return Splits(options[-1].scenario, users, options, inputs, drawn)


def _users(cluster: Cluster) -> int:
    return min(cluster.workload.concurrency, cluster.workload.requests)


def slow_splits(cluster: Cluster) -> dict[str, str]:
    """Return the splits that a search leaves out, with the reason: those that are far behind the
    best one for the file's users, and copies for one user."""
    answer, users = find_splits(cluster, 0), _users(cluster)
    ranked = answer.ranked(users)
    shares = {str(e.split): e.speed(users) / ranked[0].speed(users) for e in reversed(ranked)}
    of_best = f"of the speed of {ranked[0].split}" if ranked else ""
    slow = {
        name: f"the closed form has {s:.0%} {of_best}" for name, s in shares.items() if s < NEAR
    }
    copies = {str(e.split) for e in answer.options if users == 1 < e.split.replicas}
    return slow | dict.fromkeys(copies, "one user has no use of copies")


def _scenarios(cluster: Cluster) -> Iterator[tuple[Split, str, Scenario]]:
    """Yield every split without a draft, then with every place of it, each with every partition."""
    content = cluster.content
    template = content.pop("drafts", [{}])[0]
    draft = {key: value for key, value in template.items() if key not in ("count", "host")}
    for key in ("search", "faults", "serving"):
        content.pop(key, None)
    lengths = {"prompt_tokens", "new_tokens"} & {*content.get("workload", {})}
    content["workload"] = {key: content["workload"][key] for key in lengths}
    places = implied_placements(cluster) if cluster.acceptance is not None else ()
    for split in splits(cluster):
        plain = laid_out(cluster, {}, split.rows, "stage", split=True)
        for each in plain["drafts"]:
            each["source"] = next(name for name, of in drafters().items() if of.weights is None)
        tables = {"": plain}
        for place in places:
            alone = split.replicas == 1 and place == "shared"
            laid = laid_out(cluster, draft, split.rows, place, split=True)
            tables[PLACED["own" if alone else place]] = laid
        for where, made in tables.items():
            schedule = {**content.get("schedule", {}), "name": "chain" if where else "pp"}
            scenario = Scenario.of({**content, **made, "schedule": schedule}, cluster.path)
            yield from ((split, where, each) for _, each in partitions(cluster, scenario))


def _rated(option: Option, users: int) -> Option:
    """Return the option with its rates, as far as memory holds so many users."""
    split, scenario, shares = option.split, option.scenario, _shares(option.scenario)
    for count in (1, users):
        batch = -(-count // (split.replicas * split.stages))
        clients = {"workload.concurrency": count, "workload.requests": count}
        loaded = scenario.with_(**clients, **{"serving.batch": batch})
        try:
            deployment = deploy(loaded)
            check_form(loaded, deployment, KNOWN)
        except UserError as error:
            return replace(option, refusal=str(error).removeprefix(f"{scenario.path}: "))
        rate = _fastest(deployment, count, shares, split)
        tables = rows_of_formula(deployment, rate.rows)
        used = [table for table in tables if option.draft or table.work != "draft"]
        deployment = with_guessed_rows(deployment, used)
        option = replace(
            option,
            rates={**option.rates, count: rate},
            parts=option.parts or _parts(deployment, rate.drafted, shares),
            inputs={of: share for of, share in deployment.estimates.items() if of.kind != "model"},
            warnings=deployment.warnings,
        )
    return option


def _shares(scenario: Scenario) -> tuple[float, ...]:
    """Return the acceptance by depth; none of plain decoding."""
    return chain_shares(scenario) if scenario.schedule.system.drafts else ()


def _fastest(deployment: Deployment, users: int, shares: Sequence[float], split: Split) -> Rate:
    """Try all depths, and numbers of groups of up to two for each stage."""
    most, rates = -(-users // split.replicas), list[Rate]()
    passages = passages_of(deployment)
    for depth in range(bool(shares), len(shares) + 1):
        for groups in range(1, min(most, 2 * split.stages) + 1):
            speed = tokens_s(passages, users, depth, groups, shares)
            rates.append(Rate(speed, depth, groups, -(-most // groups) * (1 + depth)))
    return max(rates, key=lambda rate: rate.tokens_s)


def _parts(deployment: Deployment, depth: int, shares: Sequence[float]) -> dict[str, float]:
    """Return the shares of one user's round."""
    passage, rows = Passage(deployment), 1 + depth
    reduces = sum(len(s.layers) * deployment.all_reduces_ms(s, rows) for s in passage.stages)
    ms = {
        "passes": sum(passage.stage_ms(rows)) - reduces,
        "all-reduces": reduces,
        "hops": sum(passage.hops_ms(rows)),
        "drafting": drafting_ms(passage, 1, depth, shares),
    }
    return {name: each / sum(ms.values()) for name, each in ms.items() if each}


def _in_cases(option: Option, cases: Sequence[Mapping[Estimated, float]]) -> Option:
    """Return the option with its rates in every case, each in its way."""
    in_each: dict[int, list[float]] = {users: [] for users in option.rates}
    for factors in cases if in_each else ():
        scenario = in_case(option.scenario, option.inputs, factors)
        shares, passages = _shares(scenario), passages_of(resolve(scenario))
        for users, rate in option.rates.items():
            way = rate.drafted, rate.groups, shares
            in_each[users].append(tokens_s(passages, users, *way))
    rates = {n: replace(rate, cases=in_each[n]) for n, rate in option.rates.items()}
    return replace(option, rates=rates)


def split_answer(cluster: Cluster) -> QuestionAnswer:
    answer = find_splits(cluster, cluster.search.cases)
    sentences = [
        *_fastest_words(answer, 1),
        *_fastest_words(answer, answer.users),
        *(f"{each}: {each.refusal}." for each in answer.options if each.refusal),
        *left_out(answer),
    ]
    return QuestionAnswer("split", SPLIT, answer, sentences, _table(answer))


def _fastest_words(answer: Splits, users: int) -> list[str]:
    """Say which option is the fastest, how sure that is, and what would settle a tie."""
    ranked = answer.ranked(users)[:2]
    who = "one user" if users == 1 else f"{users} users together"
    sentences = [
        f"{which} {who}: {each}, {each.rates[users]} tokens/s."
        for which, each in zip(("The fastest split for", "The next for"), ranked, strict=False)
    ]
    if len(ranked) < 2 or not answer.cases:
        return sentences or [f"No split holds {who}."]
    first, second = (np.log(each.rates[users].cases) for each in ranked)
    ahead = float((first >= second - ROUNDING).mean())
    if ahead >= SURE:
        return sentences
    draws = {of: [log(case[of]) for case in answer.cases] for of in answer.inputs}
    of = max(draws, key=lambda each: abs(np.corrcoef(draws[each], first - second)[0, 1]))
    tie = f"That is a tie (the first is ahead in {ahead:.0%} of {len(answer.cases)} cases)"
    return [*sentences, f"{tie}; it hangs most on {of}: {MEASUREMENTS.get(of.kind, MEASURE)}."]


def _table(answer: Splits) -> Sheet:
    rates = figures("one user", f"{answer.users} users", "groups x rows")
    heads = [*columns("split", "draft", "drafted|d"), *rates, *columns("round")]
    sheet = Sheet("Tokens/s of all users together, and one user's round", heads)
    for option in sorted(answer.options, key=lambda each: -each.speed(1)):
        one, several = option.rates.get(1), option.rates.get(answer.users)
        most = sorted(option.parts.items(), key=lambda part: -part[1])[:2]
        sheet.add(
            option.dealt,
            option.draft or "none",
            one.drafted if one else None,
            str(one or "does not fit"),
            str(several or "do not fit"),
            f"{several.groups} x {several.rows}" if several else "",
            ", ".join(f"{name} {share:.0%}" for name, share in most),
        )
    return sheet
