"""Splits of a model over a cluster's devices: its layers over stages, its tensors over the devices
of a stage, whole copies (replicas), mixtures of these, and one device alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, product
from typing import Any, NamedTuple

from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster, Placement
from treepipe.profiles.library import resolve_device
from treepipe.profiles.schema import Hardware


class Split(NamedTuple):
    """Copies of the model, stages of each, devices of each stage; the stages of each copy, as
    tables of a file; and the device of a box alone, where there are several kinds."""

    replicas: int
    stages: int
    tensor: int
    rows: Sequence[Sequence[Mapping[str, Any]]] = ()
    kind: str = ""

    def __str__(self) -> str:
        """
        >>> str(Split(2, 1, 4)), str(Split(1, 1, 1))
        ('2 replicas, tensors over 4', 'one box')
        """
        parts = [
            f"{self.replicas} replicas" * (self.replicas > 1),
            f"layers over {self.stages}" * (self.stages > 1),
            f"tensors over {self.tensor}" * (self.tensor > 1),
        ]
        return ", ".join(filter(None, parts)) or f"one box{self.kind}"


def tries_splits(cluster: Cluster) -> bool:
    """Return whether a search tries splits: as the file says, else where it says nothing of its
    search, and deals out several devices by what a layer costs there."""
    if cluster.search.splits is not None:
        return cluster.search.splits
    content, stages = cluster.content, [s for p in cluster.pipelines for s in p.stages]
    given = content.get("search") or "name" in content.get("schedule", {}) or cluster.links.pairs
    fixed = any(stage.layers or stage.worker for stage in stages) or len(cluster.drafts) > 1
    return not (given or fixed) and _by_layers(cluster) and len(_devices(cluster)) > 1


def splits(cluster: Cluster) -> list[Split]:
    """Return each kind of device alone, and the splits over all devices, pure ones first; none in
    which unequal devices would share a layer.

    Raises ``UserError``: a device states the times of a whole stage, which hold for one split only;
    or the file has more than one draft of the target, which is all that a split lays out.
    """
    if [draft.agreement for draft in cluster.drafts] != [None]:
        raise UserError(f"{cluster.path}: key drafts: a split lays out one draft, of the target")
    if not _by_layers(cluster):
        raise UserError(
            f"{cluster.path}: key pipelines: stage_ms of a device tell nothing of other splits; "
            f"name profiles that say what a layer costs, or give rooflines"
        )
    devices = _devices(cluster)
    kinds = [each for n, each in enumerate(devices) if each not in devices[:n]]
    names = [f" ({_name(each)})" * (len(kinds) > 1) for each in kinds]
    single = [Split(1, 1, 1, [[{"device": e}]], n) for e, n in zip(kinds, names, strict=True)]
    numbers = [n for n in range(1, len(devices) + 1) if len(devices) % n == 0]
    pairs = [(r, s) for r, s in product(numbers, repeat=2) if len(devices) % (r * s) == 0]
    sizes = [(r, s, len(devices) // (r * s)) for r, s in pairs if len(devices) > 1]
    return single + [
        Split(r, s, t, _dealt(devices, s, t))
        for r, s, t in sorted(sizes, key=lambda e: (sum(n > 1 for n in e), e[0], e[2]))
        if all(device == devices[n - n % t] for n, device in enumerate(devices))
    ]


def implied_placements(cluster: Cluster) -> tuple[Placement, ...]:
    """Return where the draft of every split works: where ``search.drafts`` says; else on the first
    device, if the file gives it none or puts it on a stage's host; else where the file has it."""
    table = cluster.content.get("drafts", [{}])[0]
    hosts = {stage.host for pipeline in cluster.pipelines for stage in pipeline.stages} - {None}
    if cluster.search.drafts or "device" not in table or table.get("host") in hosts:
        return cluster.search.drafts or ("stage",)
    return ("own",) if table.get("count", 1) > 1 else ("shared",)


def _by_layers(cluster: Cluster) -> bool:
    devices = [stage.device for pipeline in cluster.pipelines for stage in pipeline.stages]
    where = f"{cluster.path}: a stage's device", cluster.path.parent
    return all(isinstance(resolve_device(device, *where), Hardware) for device in devices)


def _devices(cluster: Cluster) -> list[Any]:
    """Return the devices of all stages, in the file's order."""
    return [
        stage["device"]
        for table in cluster.content["pipelines"]
        for _ in range(table.get("count", 1))
        for stage in table["stages"]
        for _ in range(stage.get("count", 1) * stage.get("tensor", 1))
    ]


def _dealt(devices: Sequence[Any], stages: int, tensor: int) -> list[list[dict[str, Any]]]:
    """Deal devices in their order to the stages of every copy."""
    shared, rows = {} if tensor == 1 else {"tensor": tensor}, []
    for first in range(0, len(devices), stages * tensor):
        alike = groupby(devices[first : first + stages * tensor : tensor])
        rows.append([{"device": e, "count": len([*each]), **shared} for e, each in alike])
    return rows


def _name(device: Any) -> str:
    return device if isinstance(device, str) else device.get("profile", "by its roofline")
