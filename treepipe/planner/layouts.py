"""Layouts that a search tries: the devices of a plan, the split of the model over them, and the
draft's placement, each as a change of ``[[drafts]]`` and ``[[pipelines]]``."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster, Kind, Placement
from treepipe.planner.splits import implied_placements, splits, tries_splits
from treepipe.profiles.library import resolve_device
from treepipe.profiles.schema import Device

PLACED = {"own": "own device", "shared": "shared", "stage": "on a stage"}
"""Placements of the draft as a table shows them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A choice of devices and of the draft's placement.

    Attributes:
        settings: the choice: ``devices``, the stages of a pipeline by kind, or the ``split``, and
            ``draft``.
        changes: tables of the scenario, by key.
        bought: number of devices by kind; empty if nothing is bought.
        price_usd: total price of these; None if a kind states none.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    bought: Mapping[str, int] = field(default_factory=dict)
    price_usd: float | None = None


def layouts(cluster: Cluster) -> Iterator[Layout]:
    """Yield every layout within the available number of devices, at any price.

    Raises:
        UserError: the file's own drafts or pipelines are not of one kind each.
    """
    search = cluster.search
    if search.devices is None and not search.drafts and not tries_splits(cluster):
        yield Layout()
        return
    draft = _template(cluster)
    known = search.devices.kinds if search.devices is not None else ()
    for stages, kinds, split in _stage_rows(cluster):
        pipelines = len(stages)
        for placement, own in placements(cluster, pipelines):
            bought = Counter(pipelines * [kind.label for kind in kinds])
            if own is not None:
                bought[own.label] += pipelines if placement == "own" else 1
            if any(kind.most is not None and bought[kind.label] > kind.most for kind in known):
                continue
            settings = {"devices": _listed(kinds)} if kinds else dict(split)
            settings["draft"] = f"{own.label}, {PLACED[placement]}" if own else PLACED[placement]
            device = draft.get("device") if own is None else _given(cluster, own)
            changes = laid_out(
                cluster, {**draft, "device": device}, stages, placement, split=bool(split)
            )
            costs = [(k.price_usd, bought[k.label]) for k in known if bought[k.label]]
            stated = [price * count for price, count in costs if price is not None]
            price_usd = sum(stated) if costs and len(stated) == len(costs) else None
            yield Layout(settings, changes, bought, price_usd)


def _template(cluster: Cluster) -> dict[str, Any]:
    """Return the ``[[drafts]]`` entry that placements repeat, without its place and count."""
    tables = cluster.content.get("drafts", [{}])
    key = "search.devices" if cluster.search.devices is not None else "search.drafts"
    hosts = any(stage.host for p in cluster.pipelines for stage in p.stages)
    if len(tables) > 1 or (hosts and not tries_splits(cluster)):
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


def _stage_rows(
    cluster: Cluster,
) -> Iterator[tuple[Sequence[Sequence[Mapping[str, Any]]], tuple[Kind, ...], Mapping[str, str]]]:
    """Yield the stages of every pipeline as in a file, the kinds that one is made of, and the split
    that it is."""
    devices = cluster.search.devices
    if tries_splits(cluster):
        yield from ((each.rows, (), {"split": str(each)}) for each in splits(cluster))
        return
    if devices is None:
        tables = cluster.content["pipelines"]
        rows = [table["stages"] for table in tables for _ in range(table.get("count", 1))]
        yield rows, (), {}
        return
    (table,) = cluster.content["pipelines"]
    kinds = [kind for kind in devices.kinds if "stage" in kind.roles]
    for count in dict.fromkeys(devices.counts):
        for chosen in combinations_with_replacement(kinds, count):
            if devices.mixed or len({kind.label for kind in chosen}) == 1:
                counts = Counter(kind.label for kind in chosen)
                once = {kind.label: kind for kind in chosen}.values()
                stages = [{"device": _given(cluster, k), "count": counts[k.label]} for k in once]
                yield [copy.deepcopy(stages) for _ in range(table.get("count", 1))], chosen, {}


def placements(cluster: Cluster, pipelines: int) -> Iterator[tuple[Placement, Kind | None]]:
    """Yield the draft's placements, and the kind of device that is bought for each."""
    search = cluster.search
    places = implied_placements(cluster) if tries_splits(cluster) else search.drafts or ("own",)
    if pipelines == 1:  # "own" and "shared" are equal
        places = tuple(dict.fromkeys("own" if p == "shared" else p for p in places))
    for placement in places:
        if placement == "stage" or search.devices is None:
            yield placement, None
            continue
        for kind in search.devices.kinds:
            if "draft" in kind.roles:
                yield placement, kind


def laid_out(
    cluster: Cluster,
    draft: Mapping[str, Any],
    rows: Sequence[Sequence[Mapping[str, Any]]],
    placement: Placement,
    *,
    split: bool = False,
) -> dict[str, Any]:
    """Return the tables of a layout. A request goes to the draft and to the pipeline with the
    fewest open requests, so with equal numbers each draft serves the pipeline of its own number."""
    tables, pipelines = cluster.content["pipelines"], len(rows)
    if placement != "stage":
        whole = [{**table, "stages": row} for table, row in zip(tables, rows, strict=False)]
        if split:
            whole = [{"stages": row} for row in rows]
        elif cluster.search.devices is None:
            whole = tables
        counted = {"count": pipelines} if placement == "own" and pipelines > 1 else {}
        given = {k: v for k, v in draft.items() if v is not None}
        return {"drafts": [{**given, **counted}], "pipelines": whole}
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
    """Return the stage's device, which also drafts; raises ``UserError`` without a draft time."""
    made = Kind(device=device, name="stage").device
    found = resolve_device(made, f"{cluster.path}: a stage's device", cluster.path.parent)
    if isinstance(found, Device) and "draft_ms" not in found.model_fields_set:
        raise UserError(
            f"{cluster.path}: key search.drafts: 'stage' needs draft_ms of the first stage's device"
        )
    return copy.deepcopy(device)


def _given(cluster: Cluster, kind: Kind) -> Any:
    """Return the device of a kind as the file states it."""
    devices = cluster.search.devices
    assert devices is not None
    tables = cluster.content["search"]["devices"]["kinds"]
    return copy.deepcopy(tables[devices.kinds.index(kind)]["device"])


def _listed(kinds: Sequence[Kind]) -> str:
    counts = Counter(kind.label for kind in kinds)
    return " + ".join(f"{count} {label}" for label, count in counts.items())
