"""A text that is longer than the model's context, scored window by window as if it were one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lmtool.core.types import ScoreRequest
from lmtool.settings.score_input import Window, windows, windows_sentence
from lmtool.settings.terminal import PassingNote
from lmtool.terminal.chat.peer import local_tokenizer
from lmtool.terminal.chat.running_streams import RunningStreams
from lmtool.terminal.chat.stream_record import StreamRecord

if TYPE_CHECKING:
    from lmtool.settings.terminal import Output
    from lmtool.terminal.chat.peer import Peer

AT_ONCE = 4
"""Windows that are scored at the same time."""


@dataclass(frozen=True, slots=True)
class LongText:
    """The tokens of a prompt and a text, and how they are cut."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    """What each token of the text completes."""
    windows: tuple[Window, ...]
    sentence: str
    """What a reader of the numbers must know."""


async def cut_text(peer: Peer, prompt: str, text: str) -> LongText | None:
    """A text that does not fit into the model's context, cut into windows; None for one that fits.

    None also where the model's tokenizer is not on this machine, or the server does not tell its context: then the
    server answers what it can.
    """
    context, description = peer.info.context_length, peer.info.tokenizer
    if context is None or len(prompt.encode()) + len(text.encode()) < context:
        return None
    tokenizer = peer.tokenizer
    if tokenizer is None and description is not None:
        tokenizer = await asyncio.to_thread(local_tokenizer, description)
    if tokenizer is None:
        return None
    before = tuple(await asyncio.to_thread(tokenizer.encode_prompt, prompt))
    own = tuple(await asyncio.to_thread(tokenizer.encode_continuation, text))
    cut = windows(len(before), len(own), context)
    if len(cut) < 2:
        return None
    detokenizer = tokenizer.detokenizer(before)
    texts = [detokenizer.push(token) for token in own]
    texts[-1] += detokenizer.finish()
    return LongText((*before, *own), tuple(texts), tuple(cut), windows_sentence(len(cut), len(own), context))


async def score_windows(
    peer: Peer, out: Output, long: LongText, index: int, model: str | None, top: int | None
) -> StreamRecord:
    """The scores of all tokens of the text as one record, which ends with the first window that fails."""
    streams, waiting, passing = RunningStreams(), list(enumerate(long.windows)), PassingNote(out)
    parts: list[StreamRecord] = []
    try:
        while waiting or streams.running:
            while waiting and len(streams.running) < AT_ONCE:
                number, (start, first, end) = waiting.pop(0)
                request = ScoreRequest(number, long.ids[start:first], long.ids[first:end], model, top)
                parts.append(streams.submit(peer.model, request))
            done = sum(len(part.tokens) for part in parts)
            passing.show(f"{done:,} of {len(long.texts):,} tokens scored, in {len(long.windows)} windows")
            await streams.frame()
            if any(part.error is not None for part in parts):
                waiting.clear()
    finally:
        passing.clear()
    return _joined(parts, long.texts, index)


def _joined(parts: list[StreamRecord], texts: tuple[str, ...], index: int) -> StreamRecord:
    whole = StreamRecord(index, parts[0].sent, parts[0].top_logprobs, parts[0].logprobs_mode)
    outputs = (output for part in parts for output in part.tokens)
    whole.tokens = [(time, replace(one, text=text)) for (time, one), text in zip(outputs, texts, strict=False)]
    whole.text = "".join(texts)
    whole.usage, whole.ended = parts[0].usage, parts[-1].ended
    whole.error = next((part.error for part in parts if part.error is not None), None)
    return whole
