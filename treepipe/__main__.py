"""The command line of ``treepipe`` and ``python -m treepipe``; handles signals during imports."""

import sys

from treepipe.core.errors import UserError
from treepipe.interruption import Interruption


def main() -> None:
    """Run the command line (entry point of the console script)."""
    with Interruption.noted() as interruption:
        try:
            from treepipe.cli.main import main as command_line
        except UserError as error:  # an installed package's plugin cannot be loaded
            sys.stderr.write(f"treepipe: {error}\n")
            sys.exit(2)
        except BaseException:  # an interrupted import may raise any error
            if not interruption.happened:
                raise
            sys.stderr.write("treepipe: interrupted; nothing was written\n")
            sys.exit(interruption.exit_code)
    command_line()


if __name__ == "__main__":
    main()
