"""One prompt, one answer, or several of the same: asked, shown while it comes, and then the process ends."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lmtool.cli.output import Output
from lmtool.cli.talking.asking import Asking, variants
from lmtool.cli.talking.peer import Peer, open_peer, spelling_of
from lmtool.cli.talking.recording import recording_frames
from lmtool.cli.talking.talk import Talk, error_of
from lmtool.errors import ConnectError, TimeLimitError
from lmtool.types import ChatMessage, GenerateRequest, ModelInfo

if TYPE_CHECKING:
    from lmtool.cli.invocation import Common
    from lmtool.cli.talking.parameters import PromptWords
    from lmtool.cli.talking.render import Ink, Spell, View
    from lmtool.cli.talking.showing import Showing
    from lmtool.cli.talking.stats import Record
    from lmtool.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Once:
    """How one prompt is asked."""

    n_streams: int = 1
    tokenizer: str | None = None
    """Tokenizer to use here, for servers that take ids only."""
    timeout: float | None = None
    """Seconds for everything."""
    dry_run: bool = False
    """Only print what would be sent."""
    record: str | None = None
    """File that keeps what is said as a trace."""


async def answer(common: Common, said: PromptWords, asking: Asking, showing: Showing, once: Once) -> None:
    """Ask and show. Raises what the exit status tells: no connection, the server's error, the time limit."""
    out = Output.of(common)
    if said.hint:
        out.note(f"{said.hint}  (it was sent as text)")
    async with time_limit(once.timeout):
        if once.dry_run:
            await _dry_run(common, out, said, asking, once)
            return
        frames: deque[str] = deque()
        shown = partial(_keep_received, frames) if showing.form == "raw" else None
        async with (
            recording_frames(out, once.record, common.url, shown) as on_frame,
            open_peer(common, out, asking.model, tokenizer=once.tokenizer, on_frame=on_frame) as peer,
        ):
            requests = _requests(said, asking, peer.info, once.n_streams)
            if once.n_streams > 1 and requests[0].sampling.temperature <= 0:
                out.note("all streams will be alike: the likeliest token is always picked (-t 0.8 samples)")
            if showing.stats or showing.form in {"json", "jsonl"}:
                import lmtool.cli.talking.render  # noqa: F401 - loading it later would count as waiting for the first token
            talk = Talk()
            records = [talk.submit(peer.model, request) for request in requests]
            await asyncio.sleep(0.001)  # the request goes out before what shows its answer is loaded
            view = await _view(out, showing, peer, once.n_streams, said.text, frames)
            await _show(talk, records, view, partial(_explain, showing, peer.info, records, out))


async def _view(out: Output, showing: Showing, peer: Peer, count: int, prompt: str, frames: deque[str]) -> View:
    from lmtool.cli.talking.render import Ink, RawView

    if showing.form == "raw":
        return RawView(Ink.of(out), frames)
    spell = await spelling_of(peer) if showing.form == "table" else None
    return make_view(Ink.of(out), showing, peer.info, count, prompt, spell)


async def _show(talk: Talk, records: Sequence[Record], view: View, explain: Callable[[], None]) -> None:
    try:
        async for arrivals in talk.frames():
            view.show(arrivals)
    except asyncio.CancelledError:
        view.show(await talk.wind_down())
        raise
    finally:
        view.close()
        explain()
    for record in records:
        if record.error is not None:
            raise error_of(record.error)


def _explain(showing: Showing, info: ModelInfo, records: Sequence[Record], out: Output) -> None:
    """Put warnings, the legend and the figures on stderr."""
    from lmtool.cli.talking.render import Ink, Tint, stats_lines

    for record in records:
        for warning in record.warnings:
            out.warn(warning if len(records) == 1 else f"{record.index}│ {warning}")
    if out.quiet:
        return
    ink = Ink.of(out)
    legend = Tint(ink.depth, showing.heat, info.vocab_size).legend() if out.terminal else []
    sys.stderr.write("".join(ink.styled(*piece) for piece in legend))
    if showing.stats:
        for line in stats_lines(records):
            out.note(line)


def make_view(
    ink: Ink, showing: Showing, info: ModelInfo, count: int, prompt: str = "", spell: Spell | None = None
) -> View:
    """Return the view for a form of output. count: how many streams there will be."""
    from lmtool.cli.talking import render

    tint = render.Tint(ink.depth, showing.heat, info.vocab_size)
    if showing.form == "json":
        return render.JsonView(ink, info, count)
    view: View
    if showing.form == "jsonl":
        view = render.JsonLinesView(ink)
    elif showing.form == "table":
        view = render.TableView(ink, tint, spell, several=count > 1)
    elif count > 1:
        view = render.LanesView.of(ink, tint, count)
    else:
        view = render.TextView(ink, tint, prompt if showing.echo else "")
    return view if showing.stream else render.HeldView(view)


def _requests(said: PromptWords, asking: Asking, info: ModelInfo, count: int) -> list[GenerateRequest]:
    params = variants(asking.sampling(info, said.values), count)
    return [asking.request(i + 1, said.text, info, params[i]) for i in range(count)]


def _keep_received(frames: deque[str], direction: str, frame: str) -> None:
    if direction == "<":
        frames.append(frame)


async def _dry_run(common: Common, out: Output, said: PromptWords, asking: Asking, once: Once) -> None:
    """Print the frames that would be sent; the server is only asked what it serves."""
    from lmtool.lmtp.session import ClientSession

    session = ClientSession()

    def follow(direction: str, frame: str) -> None:
        if direction == ">":
            session.ask(asking.model, progress=True)
        else:
            session.receive(frame)

    try:
        async with open_peer(common, out, asking.model, tokenizer=once.tokenizer, on_frame=follow) as peer:
            info, tokenizer = peer.info, peer.tokenizer
    except ConnectError as error:
        out.note(f"{error.message}: shown as for a server that takes text and has no chat template")
        info, tokenizer = ModelInfo("", "", ""), None
    for request in _requests(said, asking, info, once.n_streams):
        shown = request if tokenizer is None else _tokenized(request, tokenizer)
        out.line(session.open(shown, progress=True)[1])


def _tokenized(request: GenerateRequest, tokenizer: TextTokenizer) -> GenerateRequest:
    """Return what is sent to a server that takes ids only: stop strings are watched for here."""
    prompt = request.prompt
    ids = (
        tokenizer.encode(prompt)
        if isinstance(prompt, str)
        else tokenizer.encode_chat([message for message in prompt if isinstance(message, ChatMessage)])
    )
    return replace(request, prompt=tuple(ids), sampling=replace(request.sampling, stop=()), text=False)


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Raise `TimeLimitError` when what is inside takes longer; None: no limit."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeLimitError(
            f"no end within {seconds:g} s", "allow more:  --timeout SECONDS", "ask for less:  --max-tokens N"
        ) from None
