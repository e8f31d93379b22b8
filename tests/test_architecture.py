"""Rules of the code: format, lint, types, import contracts, light start-up, tests for every package."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lmtool"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.name not in {"__init__.py", "__main__.py"})

LONG_FILES = {
    "inference/engine/cuda/graphs.py": "CUDA graphs of steps: their sizes, records and replays share one state",
    "inference/engine/cuda/kernels/sampling.py": "one Triton program that samples, and its parts",
    "inference/engine/gguf/loader.py": "a GGUF file: configuration, tokenizer and weights of one format",
    "inference/engine/model_manager.py": "models in memory: slots, budget and transitions change together",
    "inference/text/text_model.py": "text in, text out: requests are prepared and followed in one place",
    "trace/comparison.py": "two answers compared: tokens, texts and HTTP bodies",
    "trace/page.py": "the HTML page of a trace with its picture",
}
"""Files of 500 to 800 lines, and why."""


def tool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of this environment in the project's folder."""
    return subprocess.run(
        [Path(sys.executable).with_name(words[0]), *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("ruff", "format", "--check", "."),
        ("ruff", "check", "."),
        ("mypy", *(() if (ROOT / ".mypy_cache").is_dir() else ("--cache-dir", os.devnull))),
        ("lint-imports",),
    ],
    ids=["format", "lint", "types", "imports"],
)
def test_tool_is_content(words: tuple[str, ...]) -> None:
    """Format, lint, types and import contracts hold."""
    result = tool(*words)
    assert result.returncode == 0, result.stdout + result.stderr


def test_help_is_light() -> None:
    """`lmtool --help` loads no torch, transformers, textual, websockets, asyncio, aiohttp, pydantic, prompt_toolkit."""
    code = (
        "import sys; sys.argv = ['lmtool', '--help']\n"
        "from lmtool.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'textual', 'websockets', 'asyncio', 'pydantic', 'msgspec', 'rich'}\n"
        "heavy |= {'prompt_toolkit', 'aiohttp'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"--help imports: {result.stderr}"


def test_import_of_the_package_is_light() -> None:
    """`import lmtool` loads nothing but itself until a name of the Python interface is used."""
    code = "import sys; before = set(sys.modules); import lmtool; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in result.stdout.split()}
    assert loaded <= {"lmtool", "__future__", "typing", "importlib"}


PACKAGES = sorted({str(module.parent.relative_to(PACKAGE)) for module in MODULES if module.parent != PACKAGE})


@pytest.mark.parametrize("package", [name for name in PACKAGES if name.count("/") < 2])
def test_package_has_its_tests(package: str) -> None:
    """Every package of the first two levels has a folder of tests of its own name."""
    folder = "tiny" if package == "inference/tiny" else package  # beside the recipe that makes the model
    assert list((ROOT / "tests" / folder).rglob("test_*.py"))


def test_top_level_is_closed() -> None:
    """The only modules at the top are the Python interface and the program's entry."""
    assert {module.name for module in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "api.py"}


@pytest.mark.parametrize("module", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file_holds_one_idea(module: Path) -> None:
    """No file is above 500 lines without a reason."""
    lines = len(module.read_text().splitlines())
    assert lines <= (800 if str(module.relative_to(PACKAGE)) in LONG_FILES else 500)


@pytest.mark.parametrize("init", sorted(PACKAGE.rglob("__init__.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_init_holds_a_docstring_only(init: Path) -> None:
    """An `__init__.py` holds a docstring naming its nouns, and no code (the package's own: lazy names only)."""
    tree = ast.parse(init.read_text())
    assert ast.get_docstring(tree)
    if init.parent != PACKAGE:
        assert len(tree.body) == 1


@pytest.mark.parametrize("file", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_test_says_its_rule(file: Path) -> None:
    """A test's docstring is the rule it checks."""
    functions = (
        n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert not [f.name for f in functions if f.name.startswith("test_") and not ast.get_docstring(f)]


def test_no_command_is_a_bare_coroutine() -> None:
    """Typer never awaits a callback, so every registered one is a plain function."""
    import inspect

    from lmtool.cli.app import build_whole

    def walk(command: object) -> list[object]:
        children = getattr(command, "commands", None)
        return [c for child in children.values() for c in walk(child)] if children else [command]

    commands = walk(build_whole())
    assert commands
    assert not [c for c in commands if inspect.iscoroutinefunction(c.callback)]  # type: ignore[attr-defined]


def test_project_speaks_of_itself_alone() -> None:
    """No tracked file names a machine's path."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    suspects = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/")
    found = []
    for name in filter(None, tracked):
        file = ROOT / name
        if file.suffix in {".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".yml"} and file.is_file():
            text = file.read_text(encoding="utf-8")
            found += [f"{name}: {s}" for s in suspects if s in text]
    assert not found
