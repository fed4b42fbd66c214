"""A report in a real browser: no error, nothing wider than a phone, and something to be seen."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from tests.worlds.searches import found
from tests.worlds.written_studies import say
from treepipe.planner.page import plan_report
from treepipe.planner.sensitivity import Sensitivities
from treepipe.report.page import report_html

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed"),
]
PHONE = 400
# Chromium's own window is never so narrow, a frame is. What scrolls in a box of its own does not
# count, as its box does.
FRAME = """<!doctype html><body><iframe id="f" src="page.html"
 style="width:{width}px;height:800px;border:0"></iframe><p id="told"></p><script>
onload = () => {{
  const shown = document.getElementById("f").contentDocument, root = shown.documentElement;
  const beyond = [...shown.body.querySelectorAll("*")].filter(
    each => !each.parentElement.closest(".scroll")
      && each.getBoundingClientRect().right > root.clientWidth + 1);
  document.getElementById("told").textContent =
    ["told", root.clientWidth, root.scrollWidth, beyond.length].join(" ");
}};
</script>"""


@cache
def page() -> str:
    wide = {"search.schedules": ["pp", "chain"], "search.grid": {"schedule.gamma": [1, 3]}}
    each = found(**wide, name="a cluster with a rather_long_name_without_any_space_" + "x" * 60)
    return report_html(
        plan_report(each, {"sensitivity": Sensitivities.run(each, say)}, "treepipe " * 40)
    )


def browse(folder: Path, file: str, *options: str) -> tuple[str, str]:
    """What Chromium prints: the page, and its log."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--allow-file-access-from-files", "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}", *options, f"file://{folder / file}",
        ],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    return done.stdout, done.stderr


def measured(folder: Path, text: str, width: int = PHONE) -> tuple[list[int], list[str]]:
    """The page's width, the width that it takes, how many elements are beyond it; the console."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width))
    shown, log = browse(folder, "frame.html", "--dump-dom")
    (told,) = re.findall(r">told ([\d ]+)<", shown)
    return [int(each) for each in told.split()], re.findall(r":CONSOLE.*", log)


@pytest.mark.parametrize("width", [PHONE, 1200])
def test_nothing_is_wider_than_the_screen_and_the_console_is_silent(
    width: int, tmp_path: Path
) -> None:
    assert measured(tmp_path, page(), width) == ([width, width, 0], [])


def test_a_wide_element_and_an_error_would_be_noticed(tmp_path: Path) -> None:
    wide = '</h1><div style="width: 900px">wide</div><script>x</script>'
    (width, scrolled, beyond), console = measured(tmp_path, page().replace("</h1>", wide, 1))
    assert (width, beyond) == (PHONE, 1)
    assert scrolled > 900
    assert any("Content Security Policy" in line for line in console)


def test_a_screen_and_a_printer_show_something(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    picture, printed = tmp_path / "page.png", tmp_path / "page.pdf"
    browse(tmp_path, "page.html", f"--screenshot={picture}", "--window-size=800,4000")
    pixels = np.asarray(imread(picture))[..., :3]
    assert pixels.shape[:2] == (4000, 800)
    lines = [np.ptp(part) > 0.5 for part in np.array_split(pixels, 20)]
    assert sum(lines) > 12, "text and pictures down the page"
    assert np.unique(pixels.reshape(-1, 3), axis=0).shape[0] > 50
    browse(tmp_path, "page.html", f"--print-to-pdf={printed}")
    assert printed.read_bytes().startswith(b"%PDF")
    assert printed.stat().st_size > 20_000
