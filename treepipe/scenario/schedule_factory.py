"""Schedules from their section of a scenario: which class, which parameters, and what is refused.

What each schedule reads of the section is listed here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.layered import Layered, LayerParameters
from treepipe.core.decoding.static_tree import StaticTree
from treepipe.core.decoding.tree_schedule import TreeParameters
from treepipe.core.errors import UserError
from treepipe.core.front_desk import AdaptiveDepth
from treepipe.core.protocol import Schedule
from treepipe.core.schedules.dsd import ChainAhead
from treepipe.core.schedules.flowspec import Continuous, Expansion
from treepipe.core.schedules.flowspec_free import FreeRunning
from treepipe.core.schedules.pp import Autoregressive
from treepipe.scenario.schema import SamplingSection, Scenario, ScheduleSection

SPECINFER = (1, 1, 3, 1, 1, 1, 1, 1)
"""Branching per depth (SpecInfer, section 6.1)."""
_TREE = {"tree_size", "tree_depth", "top_k"}
_EXPANSION = {"context_aware", "expand_size", "expand_depth"}
_SCORE_AWARE = {"score_aware", "score_aware_size", "score_aware_depth"}
_LAYERS = {"width", "children", "layers_per_step", "group_size", "draft_reuse", "central_transfers"}
KEYS: dict[str, set[str]] = {
    "pp": set(),
    "specinfer": {"branching"},
    "eagle": _TREE,
    "chain": {"gamma"},
    "naive_pp": _TREE | {"segment_tokens", "score_order"},
    "pruned_pp": _TREE | {"segment_tokens", "score_order"},
    "flowspec": _TREE | {"segment_tokens", "score_order"} | _EXPANSION | _SCORE_AWARE,
    "flowspec_free": _TREE | {"segment_tokens", "score_order", "expand_size", "expand_depth"},
    "pipedec": _LAYERS,
    "specpipe": _LAYERS,
    "specpipe_db": _LAYERS | {"batch"},
    "starsd": {"gamma", "branching", "adaptive_depth", "depth_range"},
    "dsd": {"gamma"},
}
"""The keys that each schedule can read, besides ``prefill_chunk``."""
LAYERED = ("pipedec", "specpipe", "specpipe_db")
DRAWN = ("specinfer", "chain", "starsd", "dsd")
"""Schedules that can draft by drawing, as the rejection rule needs."""


@dataclass(frozen=True, slots=True)
class ScheduleFactory:
    """Makes a fresh schedule for every request; travels to the draft's process."""

    section: ScheduleSection
    sampling: SamplingSection

    def __call__(self, session: int, stages: int, waiting: Callable[[], int]) -> Schedule:
        section, chunk = self.section, self.section.prefill_chunk
        name = section.name
        if name == "pp":
            return Autoregressive(session, chunk)
        if name == "dsd":
            return ChainAhead(session, chunk, section.gamma, drawn=self._drawn)
        if name in LAYERED:
            layers = LayerParameters(
                section.width, section.children, section.layers_per_step, section.draft_reuse
            )
            return Layered(session, chunk, layers)
        if name in ("specinfer", "chain", "starsd"):
            return StaticTree(session, chunk, self._fixed_tree(stages, waiting), 1)
        return self._dynamic(session, stages)

    @property
    def _drawn(self) -> bool:
        return self.sampling.rule == "rejection"

    def _fixed_tree(self, stages: int, waiting: Callable[[], int]) -> TreeParameters:
        section = self.section
        grow = partial(Growth, _largest_branching(section), None, self._drawn)
        nodes = grow().nodes
        if not _adapts_depth(section):
            return TreeParameters(nodes, nodes + 1, False, grow)
        low, high = section.depth_range
        adaptive = AdaptiveDepth(low, high, float(stages), waiting)
        return TreeParameters(
            nodes,
            nodes + 1,
            False,
            partial(_adaptive_chain, adaptive, self._drawn),
            adaptive.observe,
        )

    def _dynamic(self, session: int, stages: int) -> Schedule:
        section, chunk = self.section, self.section.prefill_chunk
        growth = partial(Growth.dynamic, section.top_k, section.tree_depth)
        score_order = section.score_order
        if score_order is None:
            score_order = section.name not in ("naive_pp", "eagle")
        size, segment = section.tree_size, section.segment_tokens
        tree = TreeParameters(size, segment, score_order, growth)
        if section.name == "eagle":
            whole = TreeParameters(size, size + 1, score_order, growth)
            return StaticTree(session, chunk, whole, 1)
        if section.name == "naive_pp":
            return StaticTree(session, chunk, tree, stages + 1)
        expansion = Expansion(
            partial(Growth.dynamic, section.top_k, section.expand_depth),
            section.expand_size,
            section.context_aware,
            section.score_aware,
            section.score_aware_size,
            section.score_aware_depth,
        )
        if section.name == "flowspec_free":
            return FreeRunning(session, chunk, tree, stages + 1, expansion)
        return Continuous(
            session, chunk, tree, stages + 1, expansion if section.name == "flowspec" else None
        )


def _adaptive_chain(adaptive: AdaptiveDepth, drawn: bool) -> Growth:
    return Growth((1,) * adaptive.depth(), None, drawn)


def _adapts_depth(section: ScheduleSection) -> bool:
    return section.name == "starsd" and section.adaptive_depth


def _largest_branching(section: ScheduleSection) -> tuple[int, ...]:
    """Children per node and depth of the largest tree that a fixed-tree schedule drafts."""
    if section.name == "specinfer":
        return section.branching or SPECINFER
    if _adapts_depth(section):
        return (1,) * section.depth_range[1]
    if section.name == "starsd" and section.branching:
        return section.branching
    return (1,) * section.gamma


def read_keys(section: ScheduleSection) -> set[str]:
    """The keys that the schedule reads, given what the others say."""
    return (KEYS[section.name] | {"name", "prefill_chunk"}) - set(_overruled(section))


def _overruled(section: ScheduleSection) -> dict[str, str]:
    """Keys that the schedule could read, but that another one leaves without effect: by which."""
    found: dict[str, str] = {}
    if section.name == "starsd":
        if section.adaptive_depth:
            return dict.fromkeys(("gamma", "branching"), "adaptive_depth = true")
        found["depth_range"] = "adaptive_depth = false"
        if section.branching:
            found["gamma"] = "branching"
    if section.name == "flowspec":
        # A tree is only extended while its root is the one it was drafted at, and without
        # context-aware expansion none is drafted at the roots behind a round's first.
        if not section.context_aware:
            keys = _EXPANSION - {"context_aware"} | _SCORE_AWARE
            return dict.fromkeys(keys, "context_aware = false")
        if not section.score_aware:
            found |= dict.fromkeys(_SCORE_AWARE - {"score_aware"}, "score_aware = false")
    return found


def unused_warnings(scenario: Scenario) -> list[str]:
    """Of keys that were given and that the schedule does not read."""
    section = scenario.schedule
    overruled = _overruled(section)
    found = []
    for key in sorted(section.model_fields_set - read_keys(section)):
        by = f" with schedule.{overruled[key]}" if key in overruled else ""
        found.append(f"key schedule.{key} has no effect on {section.name}{by}")
    return found


def most_tree_tokens(section: ScheduleSection, stages: int) -> int:
    """Most tree nodes that one request can hold in a stage's or the draft's cache."""
    name = section.name
    if name == "pp":
        return 0
    if name == "dsd":
        return 4 * section.gamma + 4
    if name in LAYERED:
        return (stages + 3) * section.width * section.layers_per_step + 1
    if name in ("specinfer", "chain", "starsd"):
        return Growth(_largest_branching(section)).nodes + 1
    return section.tree_size + 1 + (stages + 3) * _most_expansion(section, stages)


def _most_expansion(section: ScheduleSection, stages: int) -> int:
    """Most nodes that a tree gains at once after it was first fed.

    Score-aware expansion takes the best of a draft that grows with every step without a commit, of
    which there are at most as many as segments under way; deeper nodes may displace all others.
    """
    read = read_keys(section)
    further = (stages + 1) * section.score_aware_size if "score_aware_size" in read else 0
    return (section.expand_size if "expand_size" in read else 0) + further


def most_pass_tokens(section: ScheduleSection, stages: int = 1) -> int:
    """Most rows that one pass computes for one request. Args: as ``most_segment_tokens``."""
    return max(most_segment_tokens(section, stages), section.prefill_chunk)


def most_segment_tokens(section: ScheduleSection, stages: int = 1) -> int:
    """Most tree nodes of one request in one pass, that is, without its prompt.

    Args:
        stages: of the pipeline.
    """
    name = section.name
    if name == "pp":
        return 1
    if name in LAYERED:
        return section.width * section.layers_per_step
    if name == "eagle":
        return section.tree_size + 1
    if name in ("specinfer", "chain", "starsd", "dsd"):
        return most_tree_tokens(section, 1)
    whole, parts = section.tree_size + 1, stages + 1
    most = min(section.segment_tokens + 1, whole)  # `split` makes the last ones a node longer
    if name == "naive_pp":
        return most
    rest = max(whole - parts * section.segment_tokens, 0)  # goes out at once, as an expansion does
    return max(most, rest + _most_expansion(section, stages))


def most_scratch_tokens(section: ScheduleSection, stages: int) -> int:
    """Most scratch nodes in the draft's cache at once."""
    if section.name in LAYERED:
        whole = most_tree_tokens(section, stages)
        return whole if section.draft_reuse else whole * 2
    if section.name in ("eagle", "naive_pp", "pruned_pp", "flowspec", "flowspec_free"):
        read, passes = read_keys(section), section.tree_depth
        if "expand_depth" in read:
            passes = max(passes, section.expand_depth)
        if "score_aware_depth" in read:  # once per step without a commit, of which few follow
            passes += (stages + 1) * section.score_aware_depth
        return section.top_k * passes
    return most_tree_tokens(section, stages)


def check_schedule(scenario: Scenario, path: Path) -> None:
    """Raises ``UserError`` for parameters that contradict each other or the cluster."""
    name = scenario.schedule.name
    key = f"{path}: key schedule"
    if name in LAYERED:
        _check_lock_step(scenario, key)
    rule = scenario.sampling.rule
    if rule == "rejection" and name not in DRAWN:
        raise UserError(
            f"{path}: key sampling.rule = 'rejection' needs drawn trees, but {name!r} takes the "
            f"most probable candidates; it is for {', '.join(DRAWN)}"
        )
    if rule == "adaptive" and name not in ("dsd", "chain"):
        raise UserError(
            f"{path}: key sampling.rule = 'adaptive' is for chains (dsd, chain), not {name!r}"
        )
    if name == "pp" and rule != "exact":
        raise UserError(f"{path}: key sampling.rule: plain decoding has no drafted token to judge")


def _check_lock_step(scenario: Scenario, key: str) -> None:
    section = scenario.schedule
    for index, pipeline in enumerate(scenario.pipelines):
        stages = sum(stage.count for stage in pipeline.stages)
        if stages % section.group_size:
            raise UserError(
                f"{key}.group_size = {section.group_size} does not divide the {stages} stages "
                f"of pipelines.{index}"
            )
    drafts = sum(draft.count for draft in scenario.drafts)
    if drafts > 1:
        raise UserError(
            f"{key}.name = {section.name!r} uses one draft server, there are {drafts}: the steps "
            f"of a pipeline have one master"
        )
