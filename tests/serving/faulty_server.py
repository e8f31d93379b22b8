"""`lmtool` with a fault: names may come twice in an object. For tests of what notices."""

from __future__ import annotations

from lmtool.inference.guide.unique_names import UniqueNames


def break_names() -> None:
    """Let this process hold nothing to names that come once."""
    setattr(UniqueNames, "forbid_repeats", lambda *_: None)  # noqa: B010  # what it is would be checked else
    setattr(UniqueNames, "advance", lambda *_: True)  # noqa: B010


if __name__ == "__main__":
    from lmtool.cli.main import main

    break_names()
    main()
