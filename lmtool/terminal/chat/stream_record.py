"""One stream's outputs with their times: its statistics, as a line for people and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lmtool.core.logprobs.distribution import perplexity
from lmtool.core.logprobs.numbers import duration, figure, percentile

if TYPE_CHECKING:
    from lmtool.core.types import FinishReason, LogprobsMode, TokenOutput, Usage


@dataclass(slots=True)
class StreamRecord:
    """Everything about one stream, in order of arrival. Times are seconds on one clock."""

    index: int
    """Number of the stream, from 1."""
    sent: float
    """When the request went out."""
    top_logprobs: int | None = None
    """Alternatives requested for each token; None for none at all."""
    logprobs_mode: LogprobsMode = "raw"
    """Which distribution its logprobs are of."""
    text: str = ""
    tokens: list[tuple[float, TokenOutput]] = field(default_factory=list)
    """Outputs with a token, and their times."""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: TokenOutput | None = None
    """The output that reported a failure."""
    warnings: tuple[str, ...] = ()
    """Parts of the request's constraint that the server did not enforce."""
    ended: float | None = None

    def add(self, time: float, output: TokenOutput) -> None:
        """Add the stream's next output."""
        self.text += output.text or ""
        if output.token is not None:
            self.tokens.append((time, output))
        self.usage = output.usage or self.usage
        if output.last:
            self.finish_reason, self.ended = output.finish_reason, time
            self.error = output if output.error is not None else None
            self.warnings = output.warnings

    @property
    def ttft(self) -> float | None:
        """Time to first token: seconds from the request to it; None without one."""
        return self.tokens[0][0] - self.sent if self.tokens else None

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first arrival; None where all arrived at once."""
        if not self.tokens:
            return None
        first, last = self.tokens[0][0], self.tokens[-1][0]
        later = sum(time > first for time, _ in self.tokens)
        return later / (last - first) if later else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between arrivals; tokens of one frame arrive together."""
        arrivals = sorted({time for time, _ in self.tokens})
        return [after - before for before, after in pairwise(arrivals)]

    @property
    def logprob(self) -> float | None:
        """Natural-log probability of all tokens together; None where a token has none."""
        logprobs = [output.logprob for _, output in self.tokens if output.logprob is not None]
        return math.fsum(logprobs) if len(logprobs) == len(self.tokens) else None

    @property
    def perplexity(self) -> float | None:
        """Perplexity of the tokens: e to the mean negative logprob; None for no tokens."""
        return perplexity(self.logprob, len(self.tokens))


def stats_line(record: StreamRecord) -> str:
    """`length · 5 tokens · ttft 9.1 ms · 410 tok/s · gap p50 2.2 p99 3.0 ms · ppl 8.4`, without what is unknown."""
    count = len(record.tokens)
    parts = [record.finish_reason or "error", f"{count} token" + "s" * (count != 1)]
    if record.ttft is not None:
        parts.append(f"ttft {duration(record.ttft)}")
    if record.rate is not None:
        parts.append(f"{figure(record.rate)} tok/s")
    if gaps := record.gaps:
        p50, p99 = (percentile(gaps, share) * 1000 for share in (0.5, 0.99))
        parts.append(f"gap p50 {figure(p50)} p99 {figure(p99)} ms")
    if record.perplexity is not None:
        mode = "" if record.logprobs_mode == "raw" else f" ({record.logprobs_mode})"
        parts.append(f"ppl {figure(record.perplexity)}{mode}")
    return " · ".join(parts)


def as_json(record: StreamRecord, model: str | None) -> dict[str, Any]:
    """One object for the whole stream: text, tokens, usage, timings in milliseconds."""
    gaps = [gap * 1000 for gap in record.gaps]
    timings = {
        "ttft_ms": _ms(record.ttft),
        "total_ms": _ms(record.ended - record.sent) if record.ended is not None else None,
        "tokens_per_second": _finite(record.rate),
        "gap_p50_ms": round(percentile(gaps, 0.5), 3) if gaps else None,
        "gap_p99_ms": round(percentile(gaps, 0.99), 3) if gaps else None,
    }
    usage = record.usage
    return {
        "model": model,
        "text": record.text,
        "finish_reason": record.finish_reason,
        **({"error": record.error.error, "error_code": record.error.error_code} if record.error else {}),
        **({"warnings": record.warnings} if record.warnings else {}),
        "tokens": [token_event(record, time, output) for time, output in record.tokens],
        "usage": {
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": len(record.tokens),
            "cached_tokens": usage.cached_tokens if usage else None,
        },
        "logprobs_mode": record.logprobs_mode,
        "logprob": _finite(record.logprob),
        "perplexity": _finite(record.perplexity),
        "timings": timings,
    }


def token_event(record: StreamRecord, time: float, output: TokenOutput) -> dict[str, Any]:
    """One event, in the fields of LMTP's TOKEN, and `time`: seconds since the request was sent."""
    event: dict[str, Any] = {"stream_id": record.index, "time": round(time - record.sent, 6)}
    if output.error is not None:
        return {**event, "error": output.error, "error_code": output.error_code}
    if output.token is not None:
        event |= {"token": output.token, "logprob": _finite(output.logprob)}
    if output.text is not None:
        event["text"] = output.text
    if output.reasoning is not None:
        event["reasoning"] = output.reasoning
    event["finish_reason"] = output.finish_reason
    if output.top_logprobs is not None:
        event["top_logprobs"] = {str(token): _finite(logprob) for token, logprob in output.top_logprobs}
    if output.warnings:
        event["warnings"] = output.warnings
    return event


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _finite(number: float | None) -> float | None:
    """JSON has no infinity: `null` stands for it."""
    return number if number is not None and math.isfinite(number) else None
