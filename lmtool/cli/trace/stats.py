"""`lmtool trace stats`: the figures of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import TraceFile, warn_if_incomplete
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.settings.terminal import Output

_SHOWN = 40


def stats(common: Common, file: TraceFile, as_json: bool = option(False, "One JSON object.", flag="--json")) -> None:
    """Print how many tokens, how fast, and how each stream ended."""
    import json

    from lmtool.trace.reader import Scan, TraceReader
    from lmtool.trace.statistics import TraceFigures

    out = common.output()
    reader, figures = TraceReader(file), TraceFigures()
    try:
        figures.read(Scan(reader))
    finally:  # also what precedes an unreadable line
        state = "unreadable" if reader.ending is None else reader.ending.state
        report = {"file": str(file), "state": state, **figures.as_json()}
        if as_json:
            out.line(json.dumps(report))
        else:
            _print(out, report)
    warn_if_incomplete(out, reader)


def _print(out: Output, figures: dict[str, Any]) -> None:
    pieces = f"{figures['pieces']} pieces of text · " if figures["pieces"] else ""
    out.line(
        f"{figures['duration_s']:.3f} s · {figures['connections']} connections · {figures['requests']} requests · "
        f"{figures['tokens']} tokens · {pieces}{figures['client_frames']} > {figures['server_frames']} < frames"
    )
    out.line(f"gap p50 {_figure(figures['gap_p50_ms'])} ms · p99 {_figure(figures['gap_p99_ms'])} ms")
    listed = figures["listed"]
    row = "{:<8} {:<24} {:>7} {:>7} {:>9} {:>8} {:>8} {:>8}  {}".format
    if listed:
        out.line(row("stream", "request", "prompt", "tokens", "ttft ms", "tok/s", "gap p99", "ppl", "end"))
    for one in listed[:_SHOWN]:
        tokens = f"{one['tokens']}*" if one["pieces"] else str(one["tokens"])
        tokens = tokens if one["completion_tokens"] is None else str(one["completion_tokens"])
        numbers = [one[n] for n in ("ttft_ms", "tokens_per_second", "gap_p99_ms", "perplexity")]
        end = one["error"] or one["finish_reason"] or ("not finished" if one["generates"] else "")
        out.line(
            row(one["stream"], one["kind"][:24], _figure(one["prompt_tokens"]), tokens, *map(_figure, numbers), end)
        )
    if any(one["pieces"] and one["completion_tokens"] is None for one in listed[:_SHOWN]):
        out.line("* pieces of text: the answer came as text chunks; request logprobs or usage to get tokens")
    if len(listed) > _SHOWN:
        out.line(f"… and {len(listed) - _SHOWN} more (--json lists the first 10000)")


def _figure(number: float | None) -> str:
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.1f}"
