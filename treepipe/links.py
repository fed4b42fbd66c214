"""Links of a scenario -> link times: by default, between roles of one machine, and per pair.

How long a message takes by these times is in ``timing.py``, who waits for whom in ``transfers.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from treepipe.errors import UserError
from treepipe.profiles.library import find_link
from treepipe.profiles.schema import Link
from treepipe.scenario import Pair, Scenario
from treepipe.timing import LinkTimes, TimeTable


def link_times(link: Link) -> LinkTimes:
    """As both worlds read it."""
    return LinkTimes(
        link.latency_ms,
        link.bandwidth_mbit_s,
        link.jitter_ms,
        link.message_ms,
        None if link.transfer_ms is None else TimeTable(link.transfer_ms),
        link.jitter,
        link.jitter_cv,
        link.loss,
        link.retransmit_ms,
        link.duplex == "half",
        link.medium,
    )


def named_link(link: Link | str, path: Path, key: str) -> LinkTimes:
    """A link's own table, or the profile it names.

    Raises:
        UserError: there is no such profile.
    """
    if isinstance(link, str):
        link = find_link(link, f"{path}: key {key}", path.parent)
    return link_times(link)


def link_estimates(scenario: Scenario, path: Path) -> dict[str, float]:
    """Relative uncertainty of the link profiles that the scenario names, where they state one.

    Raises:
        UserError: there is no such profile.
    """
    links = scenario.links
    named = {"links.default": links.default, "links.local": links.local}
    named |= {
        f"links.pairs.{i}.profile": pair.profile or pair for i, pair in enumerate(links.pairs)
    }
    found = {}
    for key, link in named.items():
        if isinstance(link, str):
            origin = find_link(link, f"{path}: key {key}", path.parent).origin
            if origin.uncertainty is not None:
                found[f"link {link}"] = origin.uncertainty
    return found


def pair_links(
    scenario: Scenario, path: Path, names: Collection[str]
) -> dict[tuple[str, str], LinkTimes]:
    """Of the pairs that the scenario lists, by (sender, receiver).

    Args:
        names: of all roles.

    Raises:
        UserError: a pair's end is no role, or its profile does not exist.
    """
    links = {}
    for index, pair in enumerate(scenario.links.pairs):
        key = f"links.pairs.{index}"
        for end in pair.ends:
            if end not in names:
                raise UserError(
                    f"{path}: key {key}.ends names {end!r}; there are {', '.join(sorted(names))}"
                )
        times = _pair_times(pair, path, key)
        links[pair.ends] = times
        if not pair.one_way:
            links[pair.ends[::-1]] = times
    return links


def _pair_times(pair: Pair, path: Path, key: str) -> LinkTimes:
    if pair.profile is None:
        return link_times(pair)
    return named_link(pair.profile, path, f"{key}.profile")
