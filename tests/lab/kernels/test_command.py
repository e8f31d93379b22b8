"""`lab kernels`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run


def test_card_and_json(lab: Run) -> None:
    """A row for each format and number of rows, and one JSON line last; oneDNN has no int4."""
    words = ("--shape", "64x96", "--formats", "float32,int4", "--rows", "1,3", "--rounds", "1", "--seconds", "0.001")
    done = lab("kernels", *words, timeout=120)
    assert done.returncode == 0, done.stderr
    *card, last = done.stdout.splitlines()
    assert card[0] == "[64, 96] · 1 thread"
    assert card[1].startswith("C kernels (")
    outcome = json.loads(last)
    rows = {(row["format"], row["rows"]): row for row in outcome["results"]}
    assert list(rows) == [("float32", 1), ("float32", 3), ("int4", 1), ("int4", 3)]
    assert all(0 < row["of_ceiling"] < 1.5 for row in rows.values())
    assert rows["int4", 3]["over_torch"] is None
    assert rows["float32", 3]["over_torch"] > 0
    assert outcome["metrics"]["int4 x3: op_per_s"]["value"] == rows["int4", 3]["op_per_s"]
    read = {one: rows[one]["bytes_per_s"] * rows[one]["us"] for one in rows}
    assert read["int4", 1] / read["float32", 1] == pytest.approx(18 / 32 / 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shape", "64"), "--shape '64' is no shape"),
        (("--shape", "1000000x1000000"), "no shape of at most"),
        (("--formats", "int2"), "there is no 'int2'"),
        (("--rows", "0"), "--rows '0' is not a list of positive numbers"),
        (("--rows", "257"), "--rows 257 is more than 256"),
        (("--compare", "nothing.json"), "cannot read nothing.json"),
    ],
)
def test_what_cannot_be_measured(lab: Run, words: tuple[str, ...], message: str) -> None:
    """A sentence, before anything is measured."""
    done = lab("kernels", *words)
    assert done.returncode in {2, 7}
    assert message in done.stderr
