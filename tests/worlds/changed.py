"""A deployment with other values of fields, wherever they stand in it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from treepipe.scenario.deployment import Deployment


def changed(deployment: Deployment, **values: Any) -> Deployment:
    """Args: ``values``: of fields of the deployment, or of its roles, wiring, service and faults.

    >>> changed(deployment, clients=2, ends="draft", seed=3)  # doctest: +SKIP
    """
    for part in ("roles", "wiring", "service", "faults"):
        of = getattr(deployment, part)
        own = {each.name: values.pop(each.name) for each in fields(of) if each.name in values}
        deployment = replace(deployment, **{part: replace(of, **own)})
    return replace(deployment, **values)
