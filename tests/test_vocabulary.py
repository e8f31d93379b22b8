"""Names and sentences are those of people who serve models: no participles as names, no private phrases.

`pytest tests/test_vocabulary.py -k ROOM` checks a room; `python -m tests.test_vocabulary [ROOM...]` lists what it has.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lmtool"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((PACKAGE / "docs").glob("*.md"))]

PARTICIPLES = frozenset(
    "asked became began begun brought came come drawn felt found gave given gone got had heard held kept knew laid "  # noqa: SIM905
    "learnt looked made meant met needed offered said seen shown spelled spoken stood taken taught thought told took "
    "tried understood wanted went wrote".split()
)
"""Verb forms that say nothing as a name of their own; `done`, `sent` or `lost` name a state in the field."""
PHRASES = re.compile(
    r"\b(so many|as much as|who submitted|nobody for ever|what who|(is|are|was|were) wanted|(is|are|be) told"
    r"|held to (a|its|the|each) (form|schema|constraint|rule)s?|near, not equal|the same of|what came|what comes"
    r"|who needs|up to nobody|whoever|where none (is|are) given|a hold on)\b",
    re.IGNORECASE,
)
"""Phrases of our dialect; `vocabulary` says what to write instead."""
FROM_SPECIFICATIONS: dict[str, str] = {}
"""`room/module.name`, and the document whose field it is."""
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "recipe" not in path.parts)
ROOMS = sorted({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES})


def modules(room: str) -> list[Path]:
    """The files of a room; a module at the top is a room of its own."""
    return [path for path in MODULES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") == room]


def bare(name: str) -> bool:
    """Whether a name is a participle alone: `told`, `Drawn`, not `cached_tokens`."""
    return name.lower() in PARTICIPLES


def public(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public classes, functions and methods of a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def bare_names(path: Path) -> list[str]:
    """Public names of a module that are participles."""
    where = path.relative_to(PACKAGE).with_suffix("")
    found = [str(where)] if bare(path.stem) else []
    for node in public(ast.parse(path.read_text(encoding="utf-8"))):
        if bare(node.name):
            found.append(f"{where}.{node.name}")
        if isinstance(node, ast.ClassDef):
            targets = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            found += [f"{where}.{node.name}.{t.id}" for t in targets if isinstance(t, ast.Name) and bare(t.id)]
        else:
            names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found += [f"{where}.{node.name}({name.arg})" for name in names if bare(name.arg)]
    return [name for name in found if name not in FROM_SPECIFICATIONS]


def prose(path: Path) -> Iterator[str]:
    """Public docstrings of a module, of the fields of its public classes, and help texts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield ast.get_docstring(tree) or ""
    for node in public(tree):
        yield ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                    yield str(one.value.value)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            for word in call.keywords:
                if word.arg == "help" and isinstance(word.value, ast.Constant):
                    yield str(word.value.value)


def phrases(path: Path) -> list[str]:
    """The phrases of our dialect that a module says in public."""
    where = path.relative_to(PACKAGE)
    text = (" ".join(part.split()) for part in prose(path))
    return [
        f"{where}: ...{one[max(0, m.start() - 30) : m.end() + 30]}..." for one in text for m in PHRASES.finditer(one)
    ]


@pytest.mark.parametrize("room", ROOMS)
class TestRoom:
    """A room's public names and sentences."""

    def test_public_names_are_nouns_and_verbs(self, room: str) -> None:
        """No module, class, field, function or parameter is a participle standing alone."""
        assert not [name for path in modules(room) for name in bare_names(path)]

    def test_public_sentences_are_natural(self, room: str) -> None:
        """No docstring or help text has a phrase of our dialect."""
        assert not [line for path in modules(room) for line in phrases(path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_natural(page: Path) -> None:
    """README and manual have no phrase of our dialect."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not [text[max(0, m.start() - 30) : m.end() + 30] for m in PHRASES.finditer(text)]


def test_the_test_can_fail() -> None:
    """Participles and phrases are found where they are, and words of the field are not."""
    assert bare("told")
    assert bare("Drawn")
    assert not bare("cached_tokens")
    assert not bare("done")
    assert PHRASES.search("Prepare for so many streams.")
    assert not PHRASES.search("Prepare for up to `max_streams` streams.")


if __name__ == "__main__":
    for room in sys.argv[1:] or ROOMS:
        found = [line for path in modules(room) for line in (*bare_names(path), *phrases(path))]
        print(f"{room}: {len(found)}")  # noqa: T201
        for line in found:
            print(f"    {line}")  # noqa: T201
