"""Thoughts in `lmtool chat`: in a colour of their own on a terminal, in JSON by name, never in piped text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmtool.core.reasoning import Reasoning, ReasoningFormat
from lmtool.core.types import ModelInfo, SamplingParams, TokenOutput
from lmtool.terminal.chat import heat
from lmtool.terminal.chat.prompt import RequestOptions
from lmtool.terminal.chat.render import InterleavedView, StyledOutput, TextView, TokenColorer
from lmtool.terminal.chat.stream_record import StreamRecord, token_event
from tests.terminal.chat.test_render import PIPE

INFO = ModelInfo("m", "m", "x")
OUTPUTS = [
    TokenOutput(1, 5, -0.1, (), "", reasoning="Hm"),
    TokenOutput(1, 6, -0.1, (), "", reasoning=""),
    TokenOutput(1, 7, -0.1, (), "Yes", finish_reason="stop"),
]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_text_of_a_stream(terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """What is piped is the answer alone."""
    styled = StyledOutput(replace(PIPE.out, terminal=terminal), "16")
    view, record = TextView(styled, TokenColorer("16")), StreamRecord(1, 0.0)
    for output in OUTPUTS:
        record.add(0.0, output)
        view.show([(record, 0.0, output)])
    view.close()
    thought = f"\x1b[{heat.THOUGHT['16']}mHm\x1b[0m\n\n" if terminal else ""
    assert capsys.readouterr().out == f"{thought}Yes\n"
    assert record.text == "Yes"
    assert token_event(record, 0.0, OUTPUTS[0])["reasoning"] == "Hm"
    assert "reasoning" not in token_event(record, 0.0, OUTPUTS[2])


@pytest.mark.parametrize("depth", ["256", "16", "attributes"])
def test_heat(depth: heat.Depth) -> None:
    """Under `--heat` its steps are other ones than the answer's; without it thoughts have one look."""
    thought, _, answer = OUTPUTS
    for mode in (None, "prob"):
        colorer = TokenColorer(depth, mode)
        assert colorer.style(thought) != colorer.style(answer)
        assert "3" in colorer.style(thought).split(";")
    assert len(set(heat.THOUGHT_STYLES[depth])) >= 3


def test_several_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line, each with its thought."""
    styled = StyledOutput(replace(PIPE.out, terminal=True), "16")
    view, record = InterleavedView.of(styled, lambda: TokenColorer("16"), 2), StreamRecord(1, 0.0)
    for output in OUTPUTS:
        view.show([(record, 0.0, output)])
    view.close()
    shown = capsys.readouterr().out
    assert f"\x1b[{heat.THOUGHT['16']}mHm" in shown
    assert shown.index("Hm") < shown.index("Yes")


@pytest.mark.parametrize(
    ("info", "reasoning"),
    [(INFO, None), (replace(INFO, reasoning=ReasoningFormat("think")), Reasoning()),
     (replace(INFO, text_only=True), Reasoning())],
)  # fmt: skip
def test_who_is_asked(info: ModelInfo, reasoning: Reasoning | None) -> None:
    """A server that says nothing of thoughts meets no new field."""
    assert RequestOptions().request(1, "Hi", info, SamplingParams()).reasoning == reasoning
