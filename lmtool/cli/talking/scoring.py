"""Candidates scored together, and the tables made of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lmtool.cli.invocation import Common
from lmtool.cli.output import Output
from lmtool.cli.talking import heat, render
from lmtool.cli.talking.answer import time_limit
from lmtool.cli.talking.cells import pad, shorten, width
from lmtool.cli.talking.peer import open_peer, spelling_of
from lmtool.cli.talking.render import Ink, Spell, Tint
from lmtool.cli.talking.stats import Record, token_event
from lmtool.cli.talking.talk import Talk, error_of
from lmtool.logprobs.distribution import bits, format_probability, perplexity, probability
from lmtool.types import ScoreRequest, TokenOutput

BAR = 16
"""Columns of the bar of the likeliest candidate."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FIGURES = 40
"""Columns of a table's figures and the blanks around them."""
_WIDEST = 40
"""Columns of a text in a table on a terminal."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is scored, and how it is shown."""

    prompt: str
    candidates: tuple[str, ...]
    model: str | None = None
    form: str = "table"
    """`table`, `heat`, `ppl-only`, `json` or `csv`."""
    heat: heat.HeatMode | None = None
    """What tokens are coloured by, in that form."""
    per: str = "text"
    """What a row stands for: `text`, `word` or `token`."""
    top: int | None = None
    """Likeliest tokens shown at each place."""
    tokenizer: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A candidate, or a word or token of one, with its score."""

    candidate: int
    """Place of the candidate, from 0."""
    text: str
    outputs: tuple[TokenOutput, ...]

    @property
    def known(self) -> list[float]:
        """Natural-log probabilities of its tokens, each after those before it; of one after nothing there is none."""
        return [output.logprob for output in self.outputs if output.logprob is not None]

    @property
    def logprob(self) -> float:
        """Natural-log probability of all tokens that have one; 0 for none."""
        return math.fsum(self.known)

    @property
    def p(self) -> float:
        """Probability."""
        return probability(self.logprob)

    @property
    def perplexity(self) -> float | None:
        """Perplexity; None for no tokens that have a probability."""
        return perplexity(self.logprob, len(self.known))


async def score_texts(common: Common, scoring: Scoring) -> None:
    """Score all candidates at once and print the result. Raises what the exit status tells."""
    out = Output.of(common)
    async with (
        time_limit(scoring.timeout),
        open_peer(common, out, scoring.model, tokenizer=scoring.tokenizer) as peer,
    ):
        talk = Talk()
        records = [
            talk.submit(peer.model, ScoreRequest(i, scoring.prompt, text, scoring.model, scoring.top, text=True))
            if text  # nothing has no tokens: there is nothing to ask, and LMQL's server would never answer
            else Record(i, 0.0)
            for i, text in enumerate(scoring.candidates)
        ]
        async for _ in talk.frames():
            pass
        spell = await spelling_of(peer) if scoring.top else None
        tint = Tint(Ink.of(out).depth, scoring.heat, peer.info.vocab_size)
        model = peer.info.model
    for record in records:
        if record.error is not None:
            raise error_of(record.error)
    if scoring.top and any(output.top_logprobs is None for record in records for _, output in record.tokens):
        out.note("this server sends no alternatives with scores")
    alone = [] if scoring.prompt else [record for record in records if _forget_first(record)]
    if alone:
        out.note("without a prompt the first token has nothing before it: it has no probability, and does not count")
    _print(Ink.of(out), scoring, records, tint, spell, model)


def _forget_first(record: Record) -> bool:
    """Take the logprob from a first token with nothing before it, which LMTP tells as 0 (SCO-2); whether it was one."""
    if not record.tokens or (record.usage is not None and record.usage.prompt_tokens):
        return False
    time, first = record.tokens[0]
    if first.logprob == 0:
        record.tokens[0] = time, replace(first, logprob=None, top_logprobs=None)
    return first.logprob == 0


def _print(ink: Ink, scoring: Scoring, records: Sequence[Record], tint: Tint, spell: Spell | None, model: str) -> None:
    whole = [_whole(i, text, records[i]) for i, text in enumerate(scoring.candidates)]
    if scoring.form == "json":
        ink.out.line(json.dumps(_json(scoring, records, model), ensure_ascii=False))
    elif scoring.form == "ppl-only":
        ink.out.write("".join(f"{_number(part.perplexity)}\n" for part in whole))
    elif scoring.form == "heat":
        for i, record in enumerate(records):
            ink.write([*((o.text or "", tint.style(o)) for _, o in record.tokens), ("\n", "")])
            ink.out.note(_summary(whole[i]))
    else:
        parts = [part for i, record in enumerate(records) for part in _parts(scoring, i, record)]
        if scoring.form == "csv":
            ink.out.write(as_csv(parts, scoring.candidates))
        else:
            ink.out.write(as_table(parts, scoring, spell, render.columns() if ink.out.terminal else None))


def _whole(candidate: int, text: str, record: Record) -> Part:
    return Part(candidate, text, tuple(output for _, output in record.tokens))


def _parts(scoring: Scoring, candidate: int, record: Record) -> Iterator[Part]:
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


def as_table(parts: Sequence[Part], scoring: Scoring, spell: Spell | None, columns: int | None) -> str:
    """One row a part, with a bar relative to the likeliest. columns: width of the terminal; None never shortens."""
    head = {"text": "candidate", "word": "word", "token": "token"}[scoring.per]
    shown = [repr(part.text) for part in parts]
    if columns is not None:
        shown = [shorten(text, min(_WIDEST, max(12, columns - _FIGURES - BAR - 4))) for text in shown]
    wide = max([width(text) for text in shown] + [len(head)])
    best = max((part.p for part in parts), default=0.0)
    several = scoring.per != "text" and len(scoring.candidates) > 1
    room = None if columns is None else max(0, columns - wide - _FIGURES - 4 * several)
    lines = [f" {'  # ' if several else ''}{head:<{wide}}  tokens    logprob       p       ppl"]
    for part, text in zip(parts, shown, strict=True):
        whose = f"{part.candidate + 1:>3} " if several else ""
        ppl = _number(part.perplexity)
        told = (f"{part.logprob:.3f}", format_probability(part.p)) if part.known or not part.outputs else ("-", "-")
        figures = f"{len(part.outputs):>6}  {told[0]:>9}  {told[1]:>6}  {ppl:>8}"
        if scoring.top is None:
            tail = bar(part.p / best if best else 0.0, BAR if room is None else min(BAR, room))
        else:
            tail = _alternatives(part, scoring.top, spell)
            tail = tail if room is None else shorten(tail, room)
        lines.append(f" {whose}{pad(text, wide)}  {figures}  {tail}".rstrip())
    return "\n".join(lines) + "\n"


def bar(share: float, columns: int = BAR) -> str:
    """Return a bar of eighths of a column, all of the columns for 1; anything above nothing shows one eighth."""
    eighths = round(share * columns * 8)
    if share > 0 and columns:
        eighths = max(1, eighths)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _alternatives(part: Part, top: int | None, spell: Spell | None) -> str:
    """The likeliest tokens in place of a part's first one."""
    if not part.outputs or not top:
        return ""
    found = (part.outputs[0].top_logprobs or ())[:top]
    return "  ".join(f"{repr(spell(i)) if spell else f'#{i}'} {format_probability(probability(p))}" for i, p in found)


def _number(number: float | None) -> str:
    if number is None:
        return "-"
    return "inf" if math.isinf(number) else f"{number:.2f}" if number < 1000 else f"{number:.3g}"


def _summary(part: Part) -> str:
    count = len(part.outputs)
    return f"{count} token{'s' * (count != 1)} · logprob {part.logprob:.3f} · ppl {_number(part.perplexity)}"


def as_csv(parts: Sequence[Part], candidates: Sequence[str]) -> str:
    """Rows of candidate, text, tokens, logprob, p, ppl, bits, after a row of these names."""
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["candidate", "text", "tokens", "logprob", "p", "ppl", "bits"])
    for part in parts:
        ppl = "" if part.perplexity is None else repr(part.perplexity)
        row = [
            candidates[part.candidate],
            part.text,
            len(part.outputs),
            repr(part.logprob),
            repr(part.p),
            ppl,
            repr(bits(part.logprob)),
        ]
        writer.writerow(row)
    return buffer.getvalue()


def _json(scoring: Scoring, records: Sequence[Record], model: str) -> dict[str, object]:
    found = []
    for i, record in enumerate(records):
        part = _whole(i, scoring.candidates[i], record)
        tokens = [token_event(record, time, output) for time, output in record.tokens]
        ppl = part.perplexity
        found.append(
            {
                "text": part.text,
                "logprob": part.logprob,
                "p": part.p,
                "perplexity": ppl if ppl is None or math.isfinite(ppl) else None,
                "tokens": [{k: v for k, v in token.items() if k not in {"stream_id", "time"}} for token in tokens],
            }
        )
    return {"model": model, "prompt": scoring.prompt, "candidates": found}
