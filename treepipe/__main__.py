"""``treepipe`` and ``python -m treepipe``: the command line, and Ctrl-C before it is imported."""

import sys

from treepipe.interruption import Interruption


def main() -> None:
    """Entry point of the console script."""
    with Interruption.noted() as interruption:
        try:
            from treepipe.cli.main import main as command_line
        except BaseException:  # an import that is interrupted may end in any error
            if not interruption.happened:
                raise
            sys.stderr.write("treepipe: interrupted; nothing was written\n")
            sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
