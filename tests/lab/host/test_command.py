"""`lab host`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run

ROOT = str(Path(__file__).parents[3])


def test_card_and_json(lab: Run) -> None:
    """A row for each runner, sampling and number of streams, each beside the other version's; one JSON line last."""
    words = ("--streams", "1,3", "--sampling", "greedy,top-p", "--steps", "3", "--rounds", "1", "--context", "17")
    done = lab("host", *words, "--against", ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    *card, last = done.stdout.splitlines()
    assert "prompts of 17 tokens" in card[0]
    runners = ("cpu", "paged", "graphs") if find_spec("triton") else ("cpu",)
    assert sum("top-p" in line for line in card) == 2 * len(runners)
    outcome = json.loads(last)
    rows = {(row["runner"], row["sampling"], row["streams"]): row for row in outcome["results"]}
    assert set(rows) == {(r, kind, n) for r in runners for kind in ("greedy", "top-p") for n in (1, 3)}
    for (runner, sampling, streams), row in rows.items():
        assert row["us_per_token"] == row["us"]["median"] / streams
        name = f"{runner} {sampling} x{streams}"
        assert outcome["metrics"][f"{name}: us"] == {"value": row["us"]["median"], "better": "lower"}
        assert row["over_before"]["median"] == pytest.approx(row["us"]["median"] / row["us_before"]["median"])
    assert {version["folder"] for version in outcome["versions"].values()} == {ROOT}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sampling", "beam"), "--sampling: there is no 'beam'"),
        (("--streams", "5000"), "--streams 5000 is more than 1024"),
        (("--against", "nowhere"), "--against: nowhere holds no lmtool/inference/engine"),
    ],
)
def test_what_cannot_be_measured(lab: Run, words: tuple[str, ...], message: str) -> None:
    """A sentence, before anything is measured."""
    done = lab("host", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_narrow_terminal(lab: Run) -> None:
    """The spread is left out, and no word is cut."""
    words = ("--streams", "1", "--sampling", "greedy", "--runner", "cpu", "--steps", "2", "--rounds", "1")
    done = lab("host", *words, COLUMNS="60", timeout=120)
    assert done.returncode == 0, done.stderr
    *card, _ = done.stdout.splitlines()
    assert any("µs a step" in line and "÷ before" in line and "low" not in line for line in card)
    assert "…" not in "".join(card)
