"""Links of a scenario -> link times: by default, between roles of one machine, and per pair.

How long a message takes by these times is in ``physics/timing.py``, who waits for whom in
``physics/transfers.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.physics.timing import LinkTimes
from treepipe.profiles.library import find_link, resolve_link
from treepipe.profiles.schema import AnyLink, ExtendedLink
from treepipe.scenario.scenario import Scenario


def named_link(link: AnyLink, path: Path, key: str) -> LinkTimes:
    """A link's own table, or the profile it names, with the keys that it gives beside it.

    Raises:
        UserError: there is no such profile, or the keys contradict it.
    """
    return resolve_link(link, f"{path}: key {key}", path.parent).times


def link_estimates(scenario: Scenario) -> dict[str, float]:
    """Relative uncertainty of the link profiles that the scenario names, where they state one.

    Raises:
        UserError: there is no such profile.
    """
    links, path = scenario.links, scenario.path
    named: dict[str, AnyLink] = {"links.default": links.default, "links.local": links.local}
    named |= {f"links.pairs.{index}": pair.link for index, pair in enumerate(links.pairs)}
    found = {}
    for key, link in named.items():
        name = link.profile if isinstance(link, ExtendedLink) else link
        if isinstance(name, str):
            origin = find_link(name, f"{path}: key {key}", path.parent).origin
            if origin.uncertainty is not None:
                found[f"link {name}"] = origin.uncertainty
    return found


def pair_links(scenario: Scenario, names: Collection[str]) -> dict[tuple[str, str], LinkTimes]:
    """The links of the pairs that the scenario lists, by (sender, receiver).

    Args:
        names: of all roles.

    Raises:
        UserError: a pair's end is no role, or its profile does not exist.
    """
    links, path = dict[tuple[str, str], LinkTimes](), scenario.path
    for index, pair in enumerate(scenario.links.pairs):
        key = f"links.pairs.{index}"
        for end in pair.ends:
            if end not in names:
                raise UserError(
                    f"{path}: key {key}.ends names {end!r}; there are {', '.join(sorted(names))}"
                )
        times = named_link(pair.link, path, key)
        links |= dict.fromkeys(pair.directions, times)
    return links
