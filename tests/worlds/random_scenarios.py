"""Valid scenarios at random: zero times, falling tables, tiny workloads and shared hosts are drawn
on purpose."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.worlds.any_section import SCHEDULES, sections
from treepipe.scenario.scenario import Scenario


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


few = st.integers(1, 5)
times = st.sampled_from([0.0, 0.0, 0.5, 3.0, 20.0, 1e-9, 1e6])
table = st.dictionaries(st.sampled_from([1, 2, 4, 16, 64]), times, min_size=1, max_size=4)
device = some(
    stage_ms=table,
    draft_ms=table,
    evaluate_ms=table,
    decide_ms=times,
    prune_ms=times,
    power=st.just({"idle_w": 2.0, "busy_w": 9.0}),
    price_usd_per_hour=st.just(1.0),
    idle_factor=st.just({0.0: 1.0, 10.0: 1.5}),
)
host = st.sampled_from(["box", "solo"])
link = some(
    latency_ms=times,
    bandwidth_mbit_s=st.sampled_from([0.1, 100.0]),
    message_ms=times,
    jitter_ms=times,
    jitter=st.sampled_from(["half_normal", "exponential", "lognormal", "uniform"]),
    loss=st.sampled_from([0.0, 0.3]),
    medium=st.just("air"),
)
schedule = st.builds(
    lambda name, section, more: {"name": name, **section, **more},
    st.sampled_from(SCHEDULES),
    sections,
    some(central_transfers=st.booleans(), batch=few),
)
length = st.one_of(
    st.integers(1, 15),
    st.just({"distribution": "uniform", "min": 1, "max": 9}),
    st.just({"distribution": "lognormal", "mean": 5, "cv": 2.0}),
)
arrivals = st.one_of(
    st.builds(
        lambda rate: {"process": "poisson", "rate_per_s": rate}, st.sampled_from([0.01, 10.0, 1e6])
    ),
    st.just({"process": "gamma", "rate_per_s": 3.0, "cv": 3.0}),
)
acceptance = st.one_of(
    st.builds(lambda beta: {"source": "bernoulli", "beta": beta}, st.sampled_from([0, 0.5, 1])),
    st.just({"source": "hit_ratio", "table": {1: 0.5, 4: 0.9}}),
)
stage = st.fixed_dictionaries(
    {"device": device}, optional={"host": host, "count": st.integers(1, 2)}
)
pipeline = st.fixed_dictionaries(
    {"stages": st.lists(stage, min_size=1, max_size=2)}, optional={"count": st.integers(1, 2)}
)
scenarios = st.fixed_dictionaries(
    {
        "name": st.just("random"),
        "target": st.just({}),
        "schedule": schedule,
        "acceptance": acceptance,
        "drafts": st.lists(
            st.fixed_dictionaries({"device": device}, optional={"host": host}),
            min_size=1,
            max_size=2,
        ),
        "pipelines": st.lists(pipeline, min_size=1, max_size=2),
        "workload": st.fixed_dictionaries(
            {"new_tokens": length},
            optional={
                "requests": st.one_of(few, st.integers(10, 25)),
                "prompt_tokens": length,
                "concurrency": few,
                "arrivals": arrivals,
            },
        ),
    },
    optional={
        "runs": st.integers(1, 3),
        "links": some(default=link, local=link),
        "serving": some(
            admission=few,
            places=few,
            batch=st.sampled_from([1, 2, 8, "auto"]),
        ),
    },
).map(Scenario.of)
