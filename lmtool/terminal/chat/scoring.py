"""`lmtool score`: scores candidates together, and prints tables of them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lmtool.core.logprobs.distribution import bits, perplexity, probability
from lmtool.core.logprobs.numbers import format_probability, two_decimals
from lmtool.core.types import ScoreRequest, TokenOutput
from lmtool.terminal.chat import heat, render
from lmtool.terminal.chat.answer import time_limit
from lmtool.terminal.chat.interleave import cell_width
from lmtool.terminal.chat.long_text import cut_text, score_windows
from lmtool.terminal.chat.peer import open_peer, token_text_of
from lmtool.terminal.chat.prompt import check_encoding
from lmtool.terminal.chat.render import StyledOutput, TokenColorer, TokenText, pad, shorten
from lmtool.terminal.chat.running_streams import RunningStreams, error_of
from lmtool.terminal.chat.stream_record import StreamRecord, token_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.settings.terminal import Output
    from lmtool.terminal.chat.long_text import LongText
    from lmtool.terminal.chat.peer import Peer

BAR = 16
"""Columns of the bar of the most likely candidate."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FIGURES = 40
"""Columns of a table's figures and the blanks around them."""
_WIDEST = 40
"""Columns of a text in a table on a terminal."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """The texts to score, and the form of the result."""

    prompt: str
    candidates: tuple[str, ...]
    model: str | None = None
    form: str = "table"
    """`table`, `heat`, `ppl-only`, `json` or `csv`."""
    heat: heat.HeatMode | None = None
    """What tokens are coloured by, in the form `heat`."""
    per: str = "text"
    """What a row shows: `text`, `word` or `token`."""
    top: int | None = None
    """Most likely tokens to show at each position."""
    tokenizer: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A candidate, or a word or token of one, with its score."""

    candidate: int
    """Index of the candidate, from 0."""
    text: str
    outputs: tuple[TokenOutput, ...]

    @property
    def logprobs(self) -> list[float]:
        """Natural-log probabilities of its tokens, each after those before it; of one after nothing there is none."""
        return [output.logprob for output in self.outputs if output.logprob is not None]

    @property
    def logprob(self) -> float:
        """Natural-log probability of all tokens that have one; 0 for none."""
        return math.fsum(self.logprobs)

    @property
    def p(self) -> float:
        """Probability."""
        return probability(self.logprob)

    @property
    def perplexity(self) -> float | None:
        """Perplexity; None for no tokens that have a probability."""
        return perplexity(self.logprob, len(self.logprobs))


async def score_texts(endpoint: Endpoint, out: Output, scoring: Scoring) -> None:
    """Score all candidates at once and print the result.

    Raises `ConnectError`, the server's error, or `UsageError` for a text that is not UTF-8.
    """
    for text in (scoring.prompt, *scoring.candidates):
        check_encoding(text)
    async with (
        time_limit(scoring.timeout),
        open_peer(endpoint, out, scoring.model, tokenizer=scoring.tokenizer) as peer,
    ):
        records = await _records(peer, out, scoring)
        token_text = await token_text_of(peer) if scoring.top else None
        colorer = TokenColorer(StyledOutput.of(out).depth, scoring.heat, peer.info.vocab_size)
        model = peer.info.model
    for record in records:
        if record.error is not None:
            raise error_of(record.error)
    if scoring.top and any(output.top_logprobs is None for record in records for _, output in record.tokens):
        out.note("this server sends no alternatives with scores")
    alone = [] if scoring.prompt else [record for record in records if _forget_first(record)]
    if alone:
        out.note("without a prompt the first token has nothing before it: it has no probability, and does not count")
    _print(StyledOutput.of(out), scoring, records, colorer, token_text, model)


async def _records(peer: Peer, out: Output, scoring: Scoring) -> list[StreamRecord]:
    """The scores of all candidates; those that are longer than the context in windows."""
    streams, records = RunningStreams(), list[StreamRecord]()
    long: dict[int, LongText] = {}
    for i, text in enumerate(scoring.candidates):
        if (cut := await cut_text(peer, scoring.prompt, text)) is not None:
            long[i] = cut
        if cut is not None or not text:
            # Nothing has no tokens: there is nothing to ask, and LMQL's server would never answer.
            records.append(StreamRecord(i, 0.0))
        else:
            request = ScoreRequest(i, scoring.prompt, text, scoring.model, scoring.top, text=True)
            records.append(streams.submit(peer.model, request))
    async for _ in streams.frames():
        pass
    for i, cut in long.items():
        out.note(cut.sentence)
        records[i] = await score_windows(peer, out, cut, i, scoring.model, scoring.top)
    return records


def _forget_first(record: StreamRecord) -> bool:
    """Take the logprob from a first token with nothing before it, which LMTP tells as 0 (SCO-2); whether it was one."""
    if not record.tokens or (record.usage is not None and record.usage.prompt_tokens):
        return False
    time, first = record.tokens[0]
    if first.logprob == 0:
        record.tokens[0] = time, replace(first, logprob=None, top_logprobs=None)
    return first.logprob == 0


def _print(
    styled: StyledOutput,
    scoring: Scoring,
    records: Sequence[StreamRecord],
    colorer: TokenColorer,
    token_text: TokenText | None,
    model: str,
) -> None:
    wholes = [_whole(i, text, records[i]) for i, text in enumerate(scoring.candidates)]
    if scoring.form == "json":
        styled.out.line(json.dumps(_json(scoring, records, model), ensure_ascii=False))
    elif scoring.form == "ppl-only":
        styled.out.write("".join(f"{two_decimals(part.perplexity)}\n" for part in wholes))
    elif scoring.form == "heat":
        for i, record in enumerate(records):
            styled.write([*((o.text or "", colorer.style(o)) for _, o in record.tokens), ("\n", "")])
            whole, count = wholes[i], len(wholes[i].outputs)
            figures = f"logprob {whole.logprob:.3f} · ppl {two_decimals(whole.perplexity)}"
            styled.out.note(f"{count} token{'s' * (count != 1)} · {figures}")
    else:
        parts = [part for i, record in enumerate(records) for part in _parts(scoring, i, record)]
        if scoring.form == "csv":
            styled.out.write(as_csv(parts, scoring.candidates))
        else:
            styled.out.write(as_table(parts, scoring, token_text, render.columns() if styled.out.terminal else None))


def _whole(candidate: int, text: str, record: StreamRecord) -> Part:
    return Part(candidate, text, tuple(output for _, output in record.tokens))


def _parts(scoring: Scoring, candidate: int, record: StreamRecord) -> Iterator[Part]:
    if scoring.per == "text":
        yield _whole(candidate, scoring.candidates[candidate], record)
    elif scoring.per == "token":
        for _, output in record.tokens:
            yield Part(candidate, output.text or "", (output,))
    else:
        yield from words(candidate, [output for _, output in record.tokens])


def words(candidate: int, outputs: Sequence[TokenOutput]) -> Iterator[Part]:
    """Group tokens into words: a new one begins where a token begins with white space, or follows some at an end."""
    group: list[TokenOutput] = []
    text = ""
    for output in outputs:
        own = output.text or ""
        begins = bool(re.match(r"\s", own)) or bool(re.search(r"\S\s$", text))
        if begins and text.strip():
            yield Part(candidate, text, tuple(group))
            group, text = [], ""
        group.append(output)
        text += own
    if group:
        yield Part(candidate, text, tuple(group))


def as_table(parts: Sequence[Part], scoring: Scoring, token_text: TokenText | None, columns: int | None) -> str:
    """One row a part, with a bar relative to the likeliest. columns: width of the terminal; None never shortens."""
    head = {"text": "candidate", "word": "word", "token": "token"}[scoring.per]
    texts = [repr(part.text) for part in parts]
    if columns is not None:
        texts = [shorten(text, min(_WIDEST, max(12, columns - _FIGURES - BAR - 4))) for text in texts]
    width = max([cell_width(text) for text in texts] + [len(head)])
    best = max((part.p for part in parts), default=0.0)
    several = scoring.per != "text" and len(scoring.candidates) > 1
    room = None if columns is None else max(0, columns - width - _FIGURES - 4 * several)
    lines = [f" {'  # ' if several else ''}{head:<{width}}  tokens    logprob       p       ppl"]
    for part, text in zip(parts, texts, strict=True):
        number = f"{part.candidate + 1:>3} " if several else ""
        ppl = two_decimals(part.perplexity)
        is_known = bool(part.logprobs) or not part.outputs
        logprob, p = (f"{part.logprob:.3f}", format_probability(part.p)) if is_known else ("-", "-")
        figures = f"{len(part.outputs):>6}  {logprob:>9}  {p:>6}  {ppl:>8}"
        if scoring.top is None:
            tail = bar(part.p / best if best else 0.0, BAR if room is None else min(BAR, room))
        else:
            tail = _alternatives(part, scoring.top, token_text)
            tail = tail if room is None else shorten(tail, room)
        lines.append(f" {number}{pad(text, width)}  {figures}  {tail}".rstrip())
    return "\n".join(lines) + "\n"


def bar(share: float, columns: int = BAR) -> str:
    """Return a bar of eighths of a column, all of the columns for 1; anything above nothing shows one eighth."""
    eighths = round(share * columns * 8)
    if share > 0 and columns:
        eighths = max(1, eighths)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _alternatives(part: Part, top: int | None, token_text: TokenText | None) -> str:
    """The likeliest tokens in place of a part's first one."""
    if not part.outputs or not top:
        return ""
    top_tokens = (part.outputs[0].top_logprobs or ())[:top]
    named = ((repr(token_text(i)) if token_text else f"#{i}", p) for i, p in top_tokens)
    return "  ".join(f"{name} {format_probability(probability(p))}" for name, p in named)


def as_csv(parts: Sequence[Part], candidates: Sequence[str]) -> str:
    """Rows of candidate, text, tokens, logprob, p, ppl, bits, after a row of these names."""
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["candidate", "text", "tokens", "logprob", "p", "ppl", "bits"])
    for part in parts:
        ppl = "" if part.perplexity is None else repr(part.perplexity)
        logprob, p, surprisal = map(repr, (part.logprob, part.p, bits(part.logprob)))
        writer.writerow([candidates[part.candidate], part.text, len(part.outputs), logprob, p, ppl, surprisal])
    return buffer.getvalue()


def _json(scoring: Scoring, records: Sequence[StreamRecord], model: str) -> dict[str, object]:
    candidates = []
    for i, record in enumerate(records):
        part = _whole(i, scoring.candidates[i], record)
        tokens = [token_event(record, time, output) for time, output in record.tokens]
        ppl = part.perplexity
        candidates.append(
            {
                "text": part.text,
                "logprob": part.logprob,
                "p": part.p,
                "perplexity": ppl if ppl is None or math.isfinite(ppl) else None,
                "tokens": [{k: v for k, v in token.items() if k not in {"stream_id", "time"}} for token in tokens],
            }
        )
    return {"model": model, "prompt": scoring.prompt, "candidates": candidates}
