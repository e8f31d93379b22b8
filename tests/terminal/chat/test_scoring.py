"""Tables of scores."""

from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from lmtool.core.types import TokenOutput
from lmtool.terminal.chat.scoring import BAR, Part, Scoring, as_csv, as_table, bar, words

PARIS = Part(0, " Paris", (TokenOutput(0, token=1, logprob=-1.12, top_logprobs=((1, -1.12), (2, -2.0))),))
ROME = Part(1, " Rome", (TokenOutput(1, token=2, logprob=-4.0), TokenOutput(1, token=3, logprob=-2.9)))
SCORING = Scoring("The capital of France is", (" Paris", " Rome"))


def test_table() -> None:
    """A row a candidate: tokens, logprob, probability, perplexity, and a bar relative to the best."""
    head, paris, rome = as_table([PARIS, ROME], SCORING, None, None).splitlines()
    assert head.split() == ["candidate", "tokens", "logprob", "p", "ppl"]
    assert paris.split() == ["'", "Paris'", "1", "-1.120", ".326", "3.06", "█" * BAR]
    assert rome.split() == ["'", "Rome'", "2", "-6.900", ".001", "31.50", "▏"]


def test_alternatives_take_the_place_of_the_bar() -> None:
    """`--top` shows the likeliest tokens, as ids where no tokenizer is known."""
    with_top = Scoring("", (" Paris",), top=2)
    assert as_table([PARIS], with_top, None, None).splitlines()[1].endswith("#1 .326  #2 .135")
    assert as_table([PARIS], with_top, {1: " P", 2: "x"}.get, None).splitlines()[1].endswith("' P' .326  'x' .135")  # type: ignore[arg-type] # the two ids it is asked for


@given(st.integers(40, 120), st.text(max_size=80))
def test_rows_fit_the_terminal(columns: int, text: str) -> None:
    """On a terminal no row is wider than it, of 60 columns or more; in a pipe nothing is cut."""
    part = Part(0, text, PARIS.outputs)
    table = as_table([part], Scoring("", (text,), per="token"), None, max(60, columns))
    assert all(cell_len(line) <= max(60, columns) for line in table.splitlines())
    assert repr(text) in as_table([part], Scoring("", (text,), per="token"), None, None)


def test_nothing_is_certain_and_has_no_perplexity() -> None:
    """A candidate without tokens has probability 1, no perplexity, and breaks no table."""
    nothing = Part(0, "", ())
    assert (nothing.logprob, nothing.p, nothing.perplexity) == (0.0, 1.0, None)
    assert as_table([nothing], Scoring("x", ("",)), None, None).splitlines()[1].split()[:4] == [
        "''",
        "0",
        "0.000",
        "1.00",
    ]
    assert as_table([], Scoring("x", ("",), per="token"), None, None).count("\n") == 1


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["The", " ca", "pit", "al", " of"], ["The", " capital", " of"]),
        (["a", "\n", "b"], ["a", "\n", "b"]),
        (["a", " ", "b"], ["a", " b"]),
        (["a ", "b ", "c"], ["a ", "b ", "c"]),
        ([" "], [" "]),
        ([], []),
    ],
)
def test_words(tokens: list[str], expected: list[str]) -> None:
    """Tokens are grouped to words with the white space in front of them; nothing is lost."""
    outputs = [TokenOutput(0, token=i, logprob=-1.0, text=text) for i, text in enumerate(tokens)]
    parts = list(words(0, outputs))
    assert "".join(part.text for part in parts) == "".join(tokens)
    assert sum(len(part.outputs) for part in parts) == len(tokens)
    if "\n" not in tokens:
        assert [part.text for part in parts] == expected


@given(st.floats(0, 1))
def test_bar_is_as_long_as_its_share(share: float) -> None:
    """A bar has eighths of columns; what is possible at all is visible."""
    drawn = bar(share)
    assert len(drawn) <= BAR
    assert bool(drawn) == (share > 0)
    assert abs(len(drawn) - share * BAR) <= 1


def test_csv_can_be_read_back() -> None:
    """CSV has all digits and survives quotes and line feeds."""
    odd = Part(0, 'a "b"\n,c', PARIS.outputs)
    rows = list(csv.DictReader(io.StringIO(as_csv([odd, Part(0, "", ())], ['a "b"\n,c']))))
    assert rows[0]["text"] == 'a "b"\n,c'
    assert float(rows[0]["p"]) == math.exp(-1.12)
    assert rows[1]["ppl"] == ""
