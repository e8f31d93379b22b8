"""What the tests of GPU code import: nothing that a machine with a GPU may lack."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[4]
THERE = {
    *sys.stdlib_module_names,
    "torch",
    "transformers",
    "triton",
    "numpy",
    "pytest",
    "safetensors",
    "huggingface_hub",
}
"""With transformers come the last two."""


def file_of(module: str) -> Path | None:
    """Of a module of this checkout."""
    path = ROOT.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


def at_import(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Modules that are imported as a module of these statements is."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from at_import([*node.body, *node.orelse])


def needed(module: str, seen: set[str]) -> Iterator[str]:
    """Packages that a module of this checkout needs, itself or through others of this checkout, and who needs them."""
    file = file_of(module)
    if file is None or module in seen:
        return
    seen.add(module)
    for name in at_import(ast.parse(file.read_text(encoding="utf-8")).body):
        top = name.partition(".")[0]
        if top in {"lmtool", "tests"}:
            yield from needed(name, seen)
        elif top not in THERE:
            yield f"{module} needs {top}"


def test_nothing_else_is_needed():
    """Every file of this folder is collected with torch, transformers, Triton and NumPy alone."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    seen = set[str]()
    assert not [line for module in ("tests.inference.engine.conftest", *modules) for line in needed(module, seen)]


def test_the_test_can_fail():
    """The tests of other rooms need more."""
    assert "tests.conftest needs hypothesis" in set(needed("tests.conftest", set()))
