"""``python -m treepipe``: the same as the console script."""

from treepipe.cli.main import main

if __name__ == "__main__":
    main()
