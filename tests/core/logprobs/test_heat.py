"""Heat: steps, and colours that can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmtool.core.logprobs.heat import ATTRIBUTES, COLORS, LIGHT_COLORS, MODES, STEPS, UPPER, legend, step_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize(
    ("mode", "value", "step"),
    [
        ("prob", 1.0, 0), ("prob", 0.9, 0), ("prob", 0.89, 1), ("prob", 0.5, 2), ("prob", 0.1, 4), ("prob", 0.0, 7),
        ("surprisal", 0.5, 0), ("surprisal", 20.0, 7), ("rank", 1, 0), ("rank", 2, 1), ("rank", 51, 7),
        ("entropy", 0.5, 0), ("entropy", 0.51, 1), ("gap", 5, 0), ("gap", 501, 7),
        ("prob", None, None), ("stream", 1.0, None),
    ],
)  # fmt: skip
def test_steps(mode: str, value: float | None, step: int | None) -> None:
    """A value belongs to the first step whose limit it does not pass."""
    assert step_of(mode, value) == step  # type: ignore[arg-type] # one of the modes


@pytest.mark.parametrize("mode", MODES)
def test_the_legend_names_every_step(mode: str) -> None:
    """A label for each step, in order; none for a mode that colours by stream."""
    labels = legend(mode)  # type: ignore[arg-type] # one of the modes
    assert [step for _, step in labels] == (list(range(STEPS)) if mode in UPPER else [])
    assert len({label for label, _ in labels}) == len(labels)


def test_a_legend_says_which_way_its_limits_count() -> None:
    """The likeliest tokens are at least as likely as the first limit, the best ranks at most the first one."""
    assert [legend("prob")[i][0] for i in (0, -1)] == ["≥.9", "<.01"]
    assert [legend("rank")[i][0] for i in (0, -1)] == ["≤1", ">50"]


@pytest.mark.parametrize("table", [COLORS, LIGHT_COLORS])
@pytest.mark.parametrize("palette", COLORS)
def test_every_step_has_a_look(palette: str, table: Mapping[str, tuple[tuple[int, int], ...]]) -> None:
    """Eight colours, no two the same, each with a text that can be read on it; and eight attributes for no colour."""
    colors = table[palette]
    assert len(colors) == len(ATTRIBUTES) == STEPS
    assert len({ground for _, ground in colors}) == STEPS
    assert {text for text, _ in colors} == {231, 16}
