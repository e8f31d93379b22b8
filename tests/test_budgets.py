"""Size budgets per package: lines of Python and C, and files. To need more, raise a number and say why."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lmtool"
BUDGETS: dict[str, tuple[int, int]] = {
    "cli": (5650, 41),
    "measure/bench": (3600, 28),
    "measure/audit": (2950, 20),
    "measure/conformance": (2200, 15),
    "terminal/chat": (4850, 30),
    "terminal/tui": (11700, 48),
    "serving": (3600, 18),
    "trace": (11400, 34),
    "gateway": (6750, 40),
    "protocol/lmtp": (6300, 39),
    "protocol/http": (6500, 29),
    "protocol/evergreen": (5000, 28),
    "protocol/providers": (2700, 17),
    "inference/engine": (16600, 60),
    "inference/guide": (5550, 22),
    "inference/text": (2650, 13),
    "inference/backends": (1800, 10),
    "inference/tiny": (20, 2),
    "net": (4050, 40),
    "settings": (520, 6),
    "core": (4350, 33),
}
"""Package to its most lines and most files (`.py`, `.c`, `.h`)."""


def sizes() -> dict[str, tuple[int, int]]:
    """Lines and files of each package of the table, and of what is in none of them as the empty name."""
    found: dict[str, tuple[int, int]] = {}
    for file in PACKAGE.rglob("*"):
        if file.suffix in {".py", ".c", ".h"}:
            inside = file.relative_to(PACKAGE)
            name = next((name for name in BUDGETS if inside.is_relative_to(name)), "")
            lines, files = found.get(name, (0, 0))
            found[name] = lines + len(file.read_bytes().splitlines()), files + 1
    return found


@pytest.mark.parametrize("package", BUDGETS)
def test_package_keeps_its_budget(package: str) -> None:
    """Neither more lines nor more files than in the table."""
    lines, files = sizes()[package]
    most_lines, most_files = BUDGETS[package]
    assert (lines <= most_lines, files <= most_files) == (True, True), f"{package}: {lines} lines in {files} files"


def test_every_package_has_a_budget() -> None:
    """The table covers the whole tree, but for the modules at its top."""
    _, files = sizes()[""]
    assert files == len(list(PACKAGE.glob("*.py"))) + len({Path(name).parts[0] for name in BUDGETS if "/" in name})


def test_no_budget_is_generous() -> None:
    """A package that has shrunk by a twentieth gives the rest of its budget back."""
    generous = [name for name, (lines, _) in sizes().items() if name and lines + 50 < 0.95 * BUDGETS[name][0]]
    assert not generous, f"lower the budgets of {generous}"
