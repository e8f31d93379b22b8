"""Run lmtool as `python -m lmtool`."""

from lmtool.cli.main import main

if __name__ == "__main__":
    main()
