"""Every system by name, and schedule sections of any legal values; for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from treepipe.core.schedules import systems
from treepipe.testing.hashed_lm import VOCABULARY

SCHEDULES: tuple[str, ...] = tuple(systems())

LAYERED = [system.name for system in systems().values() if system.in_lock_step]

sections = st.fixed_dictionaries(
    {
        "tree_size": st.none() | st.integers(1, 24),
        "tree_depth": st.integers(0, 4),
        "top_k": st.integers(1, VOCABULARY),
        "segment_tokens": st.integers(1, 8),
        "expand_size": st.integers(1, 16),
        "expand_depth": st.integers(0, 3),
        "score_aware": st.booleans(),
        "cancels": st.booleans(),
        "branching": st.none() | st.lists(st.integers(1, 3), min_size=1, max_size=3),
        "gamma": st.integers(1, 5),
        "depth_range": st.none() | st.just((1, 8)),
        "restart": st.sampled_from(["every", "miss"]),
        "cutoff": st.sampled_from([(0.0, 0.0, 0.0), (0.3, 0.1, 0.2)]),
        "ahead": st.integers(24, 40),
        "width": st.integers(1, 9),
        "children": st.integers(1, VOCABULARY),
        "layers_per_step": st.integers(1, 3),
        "overlapped_pruning": st.booleans(),
        "draft_reuse": st.booleans(),
        "draft_ahead": st.booleans(),
        "fan_out": st.integers(1, 3),
        "jit_speculate": st.booleans(),
        "parallel_prefill": st.booleans(),
        "prefill_chunk": st.integers(1, 40),
    }
)
