"""Links of a scenario -> link times: by default, between roles of one machine, and per pair.

How long a message takes by these times is in ``physics/timing.py``, who waits for whom in
``physics/transfers.py``.
"""

from __future__ import annotations

from collections.abc import Collection

from treepipe.core.errors import UserError
from treepipe.physics.timing import LinkTimes
from treepipe.profiles.library import find_link, profile_name, resolve_link
from treepipe.profiles.schema import AnyLink
from treepipe.scenario.scale import Estimated, named_links, scaled_link
from treepipe.scenario.scenario import Scenario


def named_link(scenario: Scenario, link: AnyLink, key: str) -> LinkTimes:
    """A link's own table, or the profile it names, with the keys that it gives beside it, as the
    scenario scales it.

    Raises:
        UserError: there is no such profile, or the keys contradict it.
    """
    times = resolve_link(link, f"{scenario.path}: key {key}", scenario.path.parent).times
    return scaled_link(scenario.scale, link, times)


def link_estimates(scenario: Scenario) -> dict[Estimated, float]:
    """Relative uncertainty of the link profiles that the scenario names, where they state one.

    Raises:
        UserError: there is no such profile.
    """
    path, found = scenario.path, dict[Estimated, float]()
    for key, link in named_links(scenario.links).items():
        name = profile_name(link)
        if name is not None:
            at = key if isinstance(link, str) else f"{key}.profile"
            origin = find_link(name, f"{path}: key {at}", path.parent).origin
            if origin.uncertainty is not None:
                found[Estimated("link", name)] = origin.uncertainty
    return found


def pair_links(scenario: Scenario, names: Collection[str]) -> dict[tuple[str, str], LinkTimes]:
    """The links of the pairs that the scenario lists, by (sender, receiver).

    Args:
        names: of all roles, and the addresses of the spares.

    Raises:
        UserError: a pair's end is neither, or its profile does not exist.
    """
    links, path = dict[tuple[str, str], LinkTimes](), scenario.path
    for index, pair in enumerate(scenario.links.pairs):
        key = f"links.pairs.{index}"
        for end in pair.ends:
            if end not in names:
                raise UserError(
                    f"{path}: key {key}.ends names {end!r}; there are {', '.join(sorted(names))}"
                )
        times = named_link(scenario, pair.link, key)
        links |= dict.fromkeys(pair.directions, times)
    return links
