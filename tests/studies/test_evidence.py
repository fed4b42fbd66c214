"""The study ``evidence``: its registry, what it makes, and that no page quotes what is stale."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.worlds.command_line import ROOT
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.studies import evidence, starsd
from treepipe.studies.study import STUDIES, Entry, StudyResult

CLAIMS, QUOTES, PARTS = (evidence.FILE[kind] for kind in ("claim", "quote", "part"))
STORED = json.loads((ROOT / "docs/studies/evidence/evidence.json").read_text(encoding="utf-8"))
TRUST = "## How far to trust a prediction"


class Shown(str):
    """A claim's figure; as ``n`` it has no sign of per cent."""

    def __format__(self, spec: str) -> str:
        return self.removesuffix(" %") if spec == "n" else str(self)


FIGURES = {name: Shown(each["figure"]) for name, each in STORED["claims"].items()}


def page(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def quoted(quote: dict[str, Any]) -> str:
    return re.sub(r"{([^}:]+)(:?\w*)}", lambda m: f"{FIGURES[m[1]]:{m[2][1:]}}", quote["text"])


def test_the_registry_names_what_exists() -> None:
    names = [part["name"] for part in PARTS]
    assert len(names) == len({*names})
    for part in PARTS:
        assert part["name"] in STUDIES or (ROOT / "studies" / part["scenario"]).exists()
    for claim in CLAIMS:
        of = claim["of"]
        assert of in (*names, evidence.NAME) or (ROOT / of).exists(), claim
    assert [*FIGURES] == [claim["name"] for claim in CLAIMS], "the stored page is of this registry"


def test_what_changes_for_a_quick_job_are_settings_of_the_studies() -> None:
    """Of each study that has any, and of settings within settings."""
    for part in (part for part in PARTS if "quick" in part and part["name"] in STUDIES):
        module = importlib.import_module(STUDIES[part["name"]].module)
        assert evidence._changed(module.SHORT, part["quick"]) != module.SHORT
    changed = evidence._changed(starsd.SHORT, {"runs": 1, "effort": {"steps": 2}})
    assert (changed.runs, changed.effort.steps) == (1, 2)
    assert changed.effort.turns == starsd.SHORT.effort.turns


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: str(quote["text"])[:40])
def test_pages_say_what_the_evidence_says(quote: dict[str, Any]) -> None:
    assert quoted(quote) in page(quote["page"]), f"{quote['page']} should say: {quoted(quote)}"


def test_the_readme_has_no_figure_without_a_claim() -> None:
    text = page("README.md").partition(TRUST)[2]
    assert text
    for quote in QUOTES:
        text = text.replace(quoted(quote), "")
    assert re.findall(r"[\d.]+ ?%", text) == []


def test_figures_of_files_are_those_of_the_files() -> None:
    """A page that was made again has changed the claim, too."""
    for claim in CLAIMS:
        if "/" in claim["of"]:
            found = evidence._claimed(claim, {}, {})
            stored = STORED["claims"][claim["name"]]
            assert found == stored
            assert found["date"]
            assert "cores" in found["machine"]


def made(name: str, off: float) -> StudyResult:
    """Two figures of 100 that were missed by ``off``, known within 20 either way."""
    figure = Entry("left-out/1", "ms", 100 + 100 * off, 80 + 100 * off, 120 + 100 * off)
    return StudyResult(name, left_out={f"{name}/way": [replace(figure, published=100.0)] * 2})


def test_claims_and_scores_follow_from_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts are made, one is not: its claim says so, and everything else is there."""

    def own(part: dict[str, Any], settings: object, say: object) -> StudyResult:
        if part["name"] == "lost":
            raise UserError("it needs a moon")
        return made(part["name"], part["off"])

    parts = [{"name": "one", "off": 0.1}, {"name": "two", "off": 0.5}, {"name": "lost"}]
    at = ["left_out", "all", "median"]
    claims = [
        {"name": f"of/{of}", "claim": of, "of": of, "at": at, "shown": ".0%"}
        for of in ("one", evidence.NAME, "lost", "docs/nowhere.json")
    ]
    monkeypatch.setattr(evidence, "FILE", {"part": parts, "claim": claims})
    monkeypatch.setattr(evidence, "_made", own)
    result = evidence.study(evidence.SHORT, say)
    rows = {row.key: row.predicted for row in result.rows}
    assert rows["claims/of/one"] == pytest.approx(0.1)
    assert rows["claims/of/evidence"] == pytest.approx(0.3), "the median of 10, 10, 50 and 50 %"
    assert rows["claims/of/lost"] is rows["claims/of/docs/nowhere.json"] is None
    assert (rows["one/way/loo/covered"], rows["two/way/loo/covered"]) == (1.0, 0.0)
    figures = {row[0]: row[1] for row in result.tables[0].rows}
    assert figures["one"] == "10 %"
    assert figures["lost"] == "not run: it needs a moon"
    assert result.findings[-1] == "lost: not run: it needs a moon"
    assert result.content()["claims"]["of/one"]["date"]


def test_a_quick_job_says_what_it_leaves_out() -> None:
    with pytest.raises(UserError, match="too long for --quick"):
        evidence._made({"name": "real-time"}, evidence.SHORT, say)
