"""Runs the commands of pages, and writes their output behind them.

    python -m treepipe.studies.workshop.planning_pages docs/planning README.md

A page's answers are exactly the output of its commands.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

STUDIES = Path(__file__).parents[1]
GIVEN = re.compile(r"```toml\n# (?P<name>[\w-]+\.toml)\n.*?```", re.S)
"""Pattern of a file that a page has its reader write; its first line is its name."""
ANSWERED = re.compile(r"(?<=```sh\n)(?P<commands>[^`]*)```\n\n```text\n(?P<answer>.*?)```\n", re.S)
"""Pattern of commands with their answer."""


def commands(text: str) -> list[list[str]]:
    r"""Return the arguments of every ``treepipe`` in a page's answered blocks.

    >>> commands("```sh\ntreepipe plan \\\n  a.toml --runs 2\n```\n\n```text\n```\n")
    [['plan', 'a.toml', '--runs', '2']]
    """
    return [each for block in ANSWERED.finditer(text) for each in _of_block(block["commands"])]


def _of_block(block: str) -> list[list[str]]:
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("treepipe ")]


def answered(text: str, printed: Callable[[list[str]], str]) -> str:
    """Replace the page's answers by the output of its commands; ``printed`` runs a command."""

    def answer(block: re.Match[str]) -> str:
        asked = _of_block(block["commands"])
        said = "\n".join(printed(each).rstrip("\n") for each in asked)
        return f"{block['commands']}```\n\n```text\n{said}\n```\n"

    return ANSWERED.sub(answer, text)


def write_given(text: str, folder: Path) -> None:
    """Write the files that a page has its reader write."""
    for block in GIVEN.finditer(text):
        (folder / block["name"]).write_text(block[0].strip("`").removeprefix("toml\n"), "utf-8")


def from_a_folder(text: str, arguments: list[str]) -> str:
    """Return the output of ``treepipe`` in a temporary folder with a page's files and a link to the
    studies."""
    with TemporaryDirectory() as folder:
        write_given(text, Path(folder))
        (Path(folder) / "studies").symlink_to(STUDIES.resolve())
        ran = subprocess.run(
            [sys.executable, "-m", "treepipe", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return ran.stdout


def main() -> None:
    given = [Path(each) for each in sys.argv[1:]]
    pages = [page for each in given for page in (sorted(each.glob("*.md")) or [each])]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if commands(text):
            made = answered(text, partial(from_a_folder, text))
            page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
