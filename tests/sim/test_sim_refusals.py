"""Machines, links and faults that make no sense: each is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from treepipe.core.errors import UserError
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario

DEMO = Path(__file__).parents[2] / "studies" / "scenarios" / "demo.toml"
HOSTS = (
    'pipelines=[{stages=[{device="emulated-20ms",count=3,host="box"},{device="emulated-20ms"}]}]'
)
MEMORIES = (
    'pipelines=[{stages=[{device={memory_mib=4},host="box"},{device={memory_mib=5},host="box"}]}]'
)
PAIR = 'links.pairs=[{ends=["draft0","pipeline0.stage1"],%s}]'
CHAIN, REDEALT = 'schedule={name="chain"}', "faults.redeal_layers=true"
ADAPTIVE = 'sampling={rule="adaptive"}'


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([HOSTS, "hosts.bax.capacity=2"], "no draft or stage has host = 'bax'.*'box'"),
        ([HOSTS, "hosts.box.capacity=0"], "hosts.box.capacity"),
        ([HOSTS, 'drafts.0.host="pipeline0.stage4"'], "a role is called so"),
        ([MEMORIES], "stages.0 and key pipelines.0.stages.1 are on host 'box', but .* memory_mib"),
        ([PAIR % "bandwidth_mbit_s=9,transfer_ms={1=1.0}"], "bandwidth_mbit_s or transfer_ms"),
        ([PAIR % 'profile="wify"'], "links.pairs.0.profile.*did you mean 'wifi'"),
        ([PAIR % "loss=1.0"], "loss"),
        ([PAIR % "jitter_cv=2.0"], "jitter_cv is for jitter = 'lognormal', not 'half_normal'"),
        (["links.default={jitter='gauss'}"], "jitter"),
        (["links.default={duplex='both'}"], "duplex"),
        (["links.default={medium=''}"], "medium"),
        (['faults=[{worker="stage9",kind="kill",at_ms=5}]'], r"faults\.0\.worker = 'stage9'"),
        (['faults=[{worker="draft0",kind="kill"}]'], r"faults\.inject\.0\.at_ms is missing"),
        (
            ['faults=[{worker="draft0",kind="kill",rate_per_hour=1}]'],
            r"key faults\.inject\.0\.rate_per_hour is unknown",
        ),
        (['faults=[{worker="draft0",kind="fire",at_ms=5}]'], "kind"),
        (['faults=[{worker="draft0",kind="kill",at_ms=5,for_ms=9}]'], "for_ms: a worker that was"),
        (["faults.timeout_ms=5"], "timeout_ms"),
        (['faults.spares=["orin"]'], r"spares\.0.*'orin' is no HOST:PORT, e"),
        (["faults.spares=-1"], "faults.spares"),
        (
            ["faults.plain_without_draft=true", CHAIN, ADAPTIVE],
            r"plain_without_draft does not go with .* 'adaptive'",
        ),
        ([CHAIN, REDEALT, ADAPTIVE], r"redeal_layers does not go with .* 'adaptive'"),
        (
            [CHAIN, REDEALT, 'pipelines=[{stages=[{device="emulated-20ms"}]}]'],
            "every pipeline has one stage",
        ),
        (
            ['schedule={name="pipedec",groups=[2,2]}', REDEALT],
            r"does not go with schedule\.groups = \[2, 2\]",
        ),
    ],
)
def test_contradictions_are_refused(settings: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        resolve(Scenario.load(DEMO, settings))
