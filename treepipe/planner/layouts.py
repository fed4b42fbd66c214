"""Which devices a plan has, and where its draft works: the layouts that a search tries.

Law of this file: a layout is a change of ``[[drafts]]`` and ``[[pipelines]]``, and nothing else of
the scenario.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster, Kind, Placement
from treepipe.profiles.library import resolve_device
from treepipe.profiles.schema import Device

SAID = {"own": "own device", "shared": "shared", "stage": "on a stage"}
"""Placements of the draft, as a table shows them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way of equipping a cluster.

    Attributes:
        settings: what was chosen: ``devices``, the stages of a pipeline by kind, and ``draft``.
        changes: tables of the scenario, by key.
        bought: devices by kind; empty where nothing is bought.
        price_usd: of these together; None where a kind states none.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    bought: Mapping[str, int] = field(default_factory=dict)
    price_usd: float | None = None


def layouts(cluster: Cluster) -> Iterator[Layout]:
    """Every layout of as many devices of a kind as there are, however dear.

    Raises:
        UserError: the file's own drafts or pipelines are not of one kind each.
    """
    search = cluster.search
    if search.devices is None and not search.drafts:
        yield Layout()
        return
    pipelines = sum(pipeline.count for pipeline in cluster.pipelines)
    draft = _template(cluster)
    known = search.devices.kinds if search.devices is not None else ()
    for stages, kinds in _stage_rows(cluster):
        for placement, own in _placements(cluster, pipelines):
            bought = _bought(kinds, own, placement, pipelines)
            if any(k.most is not None and bought.get(str(k.label), 0) > k.most for k in known):
                continue
            settings = {"devices": _listed(kinds)} if kinds else {}
            settings["draft"] = f"{own.label}, {SAID[placement]}" if own else SAID[placement]
            device = draft.get("device") if own is None else _given(cluster, own)
            yield Layout(
                settings,
                _laid_out(cluster, {**draft, "device": device}, stages, placement, pipelines),
                bought,
                _price(known, bought),
            )


def _template(cluster: Cluster) -> dict[str, Any]:
    """The one ``[[drafts]]`` that placements repeat, without a place and a number."""
    tables = cluster.content.get("drafts", [{}])
    key = "search.devices" if cluster.search.devices is not None else "search.drafts"
    if len(tables) > 1 or any(stage.host for p in cluster.pipelines for stage in p.stages):
        raise UserError(
            f"{cluster.path}: key {key} needs one [[drafts]] and stages without hosts, which it "
            f"repeats and places"
        )
    if cluster.search.devices is not None and len(cluster.content["pipelines"]) > 1:
        raise UserError(
            f"{cluster.path}: key {key} needs one [[pipelines]], whose stages it replaces (count "
            f"repeats it)"
        )
    return {k: v for k, v in tables[0].items() if k not in ("count", "host")}


def _stage_rows(cluster: Cluster) -> Iterator[tuple[list[list[dict[str, Any]]], tuple[Kind, ...]]]:
    """Stages of every pipeline as a file says them, and the kinds that one of them is made of."""
    devices = cluster.search.devices
    if devices is None:
        tables = cluster.content["pipelines"]
        rows = [table["stages"] for table in tables for _ in range(table.get("count", 1))]
        yield rows, ()
        return
    (table,) = cluster.content["pipelines"]
    kinds = [kind for kind in devices.kinds if "stage" in kind.roles]
    for count in dict.fromkeys(devices.counts):
        for chosen in combinations_with_replacement(kinds, count):
            if devices.mixed or len({kind.label for kind in chosen}) == 1:
                stages = [
                    {"device": _given(cluster, kind), "count": n} for kind, n in _counted(chosen)
                ]
                yield [copy.deepcopy(stages) for _ in range(table.get("count", 1))], chosen


def _placements(cluster: Cluster, pipelines: int) -> Iterator[tuple[Placement, Kind | None]]:
    """Where the draft works, and the kind of device that is bought for it."""
    search = cluster.search
    asked = search.drafts or ("own",)
    if pipelines == 1:  # a draft of one's own is the shared one
        asked = tuple(dict.fromkeys("own" if p == "shared" else p for p in asked))
    for placement in asked:
        if placement == "stage" or search.devices is None:
            yield placement, None
            continue
        for kind in search.devices.kinds:
            if "draft" in kind.roles:
                yield placement, kind


def _laid_out(
    cluster: Cluster,
    draft: Mapping[str, Any],
    rows: Sequence[Sequence[Mapping[str, Any]]],
    placement: Placement,
    pipelines: int,
) -> dict[str, Any]:
    """The tables of a layout. A request goes to the draft and to the pipeline with the fewest open
    ones, so of equally many drafts each serves the pipeline of its own number."""
    tables = cluster.content["pipelines"]
    if placement != "stage":
        whole = [{**table, "stages": row} for table, row in zip(tables, rows, strict=False)]
        if cluster.search.devices is None:
            whole = tables
        counted = {"count": pipelines} if placement == "own" and pipelines > 1 else {}
        own = {k: v for k, v in draft.items() if v is not None}
        return {"drafts": [{**own, **counted}], "pipelines": whole}
    drafts, placed = [], []
    for number, row in enumerate(rows):
        host = f"machine{number}"
        first, *others = copy.deepcopy([dict(each) for each in row])
        alone = {k: v for k, v in first.items() if k != "count"}
        rest = [{**first, "count": first["count"] - 1}] if first.get("count", 1) > 1 else []
        drafts.append({**draft, "device": _drafting(cluster, first["device"]), "host": host})
        placed.append({"stages": [{**alone, "host": host}, *rest, *others]})
    return {"drafts": drafts, "pipelines": placed}


def _drafting(cluster: Cluster, device: Any) -> Any:
    """The stage's device, which drafts, too; raises ``UserError`` if it does not say how fast."""
    made = Kind(device=device, name="stage").device
    found = resolve_device(made, f"{cluster.path}: a stage's device", cluster.path.parent)
    if isinstance(found, Device) and "draft_ms" not in found.model_fields_set:
        raise UserError(
            f"{cluster.path}: key search.drafts: 'stage' needs draft_ms of the first stage's device"
        )
    return copy.deepcopy(device)


def _given(cluster: Cluster, kind: Kind) -> Any:
    """The device of a kind as the file gives it."""
    devices = cluster.search.devices
    assert devices is not None
    tables = cluster.content["search"]["devices"]["kinds"]
    return copy.deepcopy(tables[devices.kinds.index(kind)]["device"])


def _counted(kinds: Sequence[Kind]) -> list[tuple[Kind, int]]:
    """Kinds with their numbers, in order."""
    labels = [kind.label for kind in kinds]
    return [(kind, labels.count(kind.label)) for kind in {k.label: k for k in kinds}.values()]


def _listed(kinds: Sequence[Kind]) -> str:
    return " + ".join(f"{count} {kind.label}" for kind, count in _counted(kinds))


def _bought(
    kinds: Sequence[Kind], own: Kind | None, placement: Placement, pipelines: int
) -> dict[str, int]:
    """Devices by kind, of all pipelines and drafts."""
    bought = {str(kind.label): count * pipelines for kind, count in _counted(kinds)}
    if own is not None:
        drafts = pipelines if placement == "own" else 1
        bought[str(own.label)] = bought.get(str(own.label), 0) + drafts
    return bought


def _price(kinds: Sequence[Kind], bought: Mapping[str, int]) -> float | None:
    """What is bought, added up; None where a kind of it states no price, or nothing is bought."""
    prices = {str(kind.label): kind.price_usd for kind in kinds}
    known = [(prices[label], count) for label, count in bought.items()]
    if not known or any(price is None for price, _ in known):
        return None
    return sum((price or 0.0) * count for price, count in known)
