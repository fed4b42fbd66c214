"""Runs the commands of the pages about planning, and writes their output behind them.

    python -m treepipe.studies.workshop.planning_pages docs/planning

A page's answers are exactly the output of its commands; only long tables and
refusals are cut, with a mark.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

STUDIES = Path(__file__).parents[1]
ROWS = 6
"""Number of plans that a table keeps."""
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
        said = "\n".join(line for each in asked for line in shortened(printed(each)))
        return f"{block['commands']}```\n\n```text\n{said}\n```\n"

    return ANSWERED.sub(answer, text)


def from_a_folder(arguments: list[str]) -> str:
    """Return the output of ``treepipe`` in a temporary folder with a link to the studies."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "studies").symlink_to(STUDIES.resolve())
        ran = subprocess.run(
            [sys.executable, "-m", "treepipe", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return ran.stdout


def shortened(printed: str) -> Iterator[str]:
    """Yield the lines except plans and refusals beyond the first few."""
    refusals, leaving = 0, False
    for line in printed.splitlines():
        rank = re.match(r"│ +(\d+) +│", line)
        refusals += line.startswith("refused: ")
        begins = rank is not None or line.startswith(("└", "refused: ", "warning", "best plan"))
        beyond = int(rank[1]) > ROWS if rank else line.startswith("refused: ") and refusals > ROWS
        if beyond and not leaving:
            yield "│ …" if rank else "refused: …"
        leaving = beyond if begins else leaving
        if not leaving:
            yield line.rstrip()


def main() -> None:
    for page in sorted(Path(sys.argv[1]).glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if commands(text):
            page.write_text(answered(text, from_a_folder), encoding="utf-8")


if __name__ == "__main__":
    main()
