"""What is logged of a request."""

import pytest

from lmtool.lmtp.messages import Generate, Score
from lmtool.lmtp.request_log import RequestLog, StreamRecord, silent
from lmtool.types import GenerateRequest, ScoreRequest, TokenOutput, Usage


def test_times_and_counts():
    """Prompt and output tokens, time to the first, and the rate after it."""
    record = StreamRecord(3, Generate(GenerateRequest("7", (1, 2, 3), model="m"), ignored=("x",)), 10.0)
    for second in range(11):
        record.add(TokenOutput("7", second, -1.0), 10.5 + second / 10)
    log = record.log(11.5, end="length")
    assert log == RequestLog(3, "7", "GENERATE", "m", 3, 11, 0.5, 1.5, "length", None, ("x",))
    assert log.tokens_per_second == pytest.approx(10.0)


def test_text_prompts_are_counted_by_the_model():
    """The length of a text says nothing about tokens; the model's own count does."""
    record = StreamRecord(1, Score(ScoreRequest("7", "some text", "more", text=True)), 0.0)
    assert record.log(1.0, error="no", error_code="server").prompt_tokens is None
    assert record.log(1.0, error="no", error_code="server").error_code == "server"
    record.add(TokenOutput("7", finish_reason="stop", usage=Usage(4, 0, 3)), 1.0)
    log = record.log(1.0, end="stop")
    assert (log.command, log.prompt_tokens, log.output_tokens, log.ttft) == ("SCORE", 4, 0, None)
    assert log.cached_tokens == 3
    assert log.tokens_per_second is None


def test_nothing_said_is_logged():
    """A log entry has no place for a prompt or a text."""
    assert not {"prompt", "text", "frame", "messages"} & set(RequestLog.__dataclass_fields__)
    silent(RequestLog(1, "1", "GENERATE"))
