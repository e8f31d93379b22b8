"""Measures a folder of JSON-Schema-Test-Suite, such as draft7: `python -m tests.inference.guide.schema_suite DIR`.

Every schema is compiled as strict, with the `$schema` of its folder where it has none; every instance is followed as
compact JSON in the embedded model's tokens, its properties in the schema's order.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lmtool.core.constraint import json_schema
from lmtool.core.errors import LmtoolError
from lmtool.inference.guide.llguidance import ConstraintBackend
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.guide.following import accepts, accepts_reordered

_IMPOSSIBLE = "no text matches"
_DIALECTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
"""By folder, where schemas do not name theirs."""


@dataclass
class Figures:
    """What came of one folder."""

    schemas: int = 0
    unsupported: list[str] = field(default_factory=list)
    """Schemas that were refused, and why."""
    impossible: int = 0
    """Schemas of which it was said that no text matches, and of which that is so."""
    wrongly_impossible: list[str] = field(default_factory=list)
    """The same, where an instance is valid."""
    accepted: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    """Instances by whether they are valid."""
    refused: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.schemas} schemas, {len(self.unsupported)} unsupported, {self.impossible} that match nothing, "
            f"{len(self.wrongly_impossible)} of which that was said wrongly; "
            f"valid instances accepted: {self.accepted[True]}, refused: {self.refused[True]}; "
            f"invalid instances refused: {self.refused[False]}, accepted: {self.accepted[False]}"
        )


def measure(files: list[Path], backend: ConstraintBackend) -> Figures:
    """Compile each schema and judge its instances."""
    figures = Figures()
    for file in files:
        for group in json.loads(file.read_text()):
            if file.parent.name in _DIALECTS and isinstance(group["schema"], dict):
                group["schema"].setdefault("$schema", _DIALECTS[file.parent.name])
            _judge(f"{file.stem}: {group['description']}", group, backend, figures)
    return figures


def _judge(name: str, group: dict[str, object], backend: ConstraintBackend, to: Figures) -> None:
    tests = group["tests"]
    assert isinstance(tests, list)
    to.schemas += 1
    try:
        compiled = backend.compile(json_schema(group["schema"]))
    except LmtoolError as error:
        if _IMPOSSIBLE not in error.message:
            to.unsupported.append(f"{name}: {error.message}")
        elif any(test["valid"] for test in tests):
            to.wrongly_impossible.append(name)
        else:
            to.impossible += 1
        return
    for test in tests:
        text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
        accepted = accepts(backend, compiled, text) or accepts_reordered(backend, compiled, test["data"])
        valid = bool(test["valid"])
        (to.accepted if accepted else to.refused)[valid] += 1
        if accepted != valid:
            to.wrong.append(f"{name}: {test['description']}: {'valid refused' if valid else 'INVALID ACCEPTED'}")


def main() -> None:
    """Print the figures of one folder."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--all", action="store_true", help="name what is unsupported and what was judged wrong")
    given = options.parse_args()
    backend = ConstraintBackend((MODEL_DIR / "tokenizer.json").read_text(), 1536, [0, 2])
    figures = measure(sorted(given.folder.glob("*.json")), backend)
    sys.stdout.write(f"{figures}\n")
    if given.all:
        files = collections.Counter(one.partition(":")[0] for one in figures.unsupported)
        sys.stdout.write(f"unsupported by file: {dict(files.most_common())}\n")
        for sentence in (*figures.wrongly_impossible, *figures.unsupported, *figures.wrong):
            sys.stdout.write(f"  {sentence}\n")


if __name__ == "__main__":
    main()
