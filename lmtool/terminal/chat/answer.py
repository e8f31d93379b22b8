"""`lmtool chat PROMPT`: sends one prompt, shows one answer or several as they arrive."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lmtool.core.errors import ConnectError, ConstraintError, ConstraintTooComplexError, TimeLimitError
from lmtool.core.types import GenerateRequest, ModelInfo, TokenOutput
from lmtool.terminal.chat.options import explained_constraint
from lmtool.terminal.chat.peer import Peer, open_peer, token_text_of
from lmtool.terminal.chat.prompt import variants
from lmtool.terminal.chat.running_streams import RunningStreams, error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.settings.prompt_parameters import TypedPrompt
    from lmtool.settings.terminal import Output
    from lmtool.terminal.chat.options import OneShotOptions, OutputOptions
    from lmtool.terminal.chat.prompt import RequestOptions
    from lmtool.terminal.chat.render import View
    from lmtool.terminal.chat.stream_record import StreamRecord


_OF_CONSTRAINTS = frozenset({ConstraintError.code, ConstraintTooComplexError.code})


async def answer(
    endpoint: Endpoint,
    out: Output,
    prompt: TypedPrompt,
    requests: RequestOptions,
    display: OutputOptions,
    options: OneShotOptions,
) -> None:
    """Send the prompt and show the answers. Raises `ConnectError`, the server's error, or `TimeLimitError`."""
    if prompt.hint:
        out.note(f"{prompt.hint}  (it was sent as text)")
    async with time_limit(options.timeout):
        if options.dry_run:
            await _dry_run(endpoint, out, prompt, requests, options)
            return
        frames: deque[str] = deque()
        on_frame = partial(_keep_received, frames) if display.form == "raw" else None
        connecting = open_peer(
            endpoint, out, requests.model, tokenizer=options.tokenizer, record=options.record, on_frame=on_frame,
            resume=options.resume,
        )  # fmt: skip
        async with connecting as peer:
            sent = _requests(prompt, requests, peer.info, options.n_streams)
            if options.n_streams > 1 and sent[0].sampling.temperature <= 0:
                out.note(
                    "all streams will be the same: without a temperature the most likely token is picked (try -t 0.8)"
                )
            if display.stats or display.form in {"json", "jsonl"}:
                import lmtool.terminal.chat.render  # noqa: F401 - loading it later would count as waiting for the first token
            streams = RunningStreams()
            peer.waiting.note = lambda text: streams.call(partial(out.note, text))
            records = [streams.submit(peer.model, request) for request in sent]
            await asyncio.sleep(0.001)  # the request goes out before what shows its answer is loaded
            view = await _view(out, display, peer, options.n_streams, prompt.text, frames)
            await _show(streams, view, partial(_explain, display, peer.info, records, out))
            peer.waiting.note = out.note
            for record in records:
                if record.error is not None:
                    raise _failure(record, record.error, requests.constraint_origin)


async def _view(out: Output, display: OutputOptions, peer: Peer, count: int, prompt: str, frames: deque[str]) -> View:
    """The view for a form of display. count: how many streams there will be. frames: those that were received."""
    from lmtool.terminal.chat import render

    styled, info = render.StyledOutput.of(out), peer.info
    if display.form == "raw":
        return render.RawView(styled, frames)
    if display.form == "json":
        return render.JsonView(styled, info, count)
    colorer = render.TokenColorer(styled.depth, display.heat, info.vocab_size)
    view: View
    if display.form == "jsonl":
        view = render.JsonLinesView(styled)
    elif display.form == "table":
        view = render.TableView(styled, colorer, await token_text_of(peer), several=count > 1)
    elif count > 1:
        view = render.InterleavedView.of(styled, partial(render.text_styler, styled, display, colorer), count)
    else:
        styler = render.text_styler(styled, display, colorer)
        view = render.TextView(styled, styler, prompt if display.echo else "")
    return view if display.stream else render.BufferedView(view)


async def _show(streams: RunningStreams, view: View, explain: Callable[[], None]) -> None:
    try:
        async for arrivals in streams.frames():
            view.show(arrivals)
    except asyncio.CancelledError:
        view.show(await streams.wind_down())
        raise
    finally:
        view.close()
        explain()


def _failure(record: StreamRecord, output: TokenOutput, constraint_origin: str) -> LmtoolError:
    """The error of a stream, in the terms of the command line."""
    error = error_of(output)
    if constraint_origin and output.error_code in _OF_CONSTRAINTS:
        return explained_constraint(error, constraint_origin)
    if record.tokens:
        received = "1 token" if len(record.tokens) == 1 else f"{len(record.tokens)} tokens"
        error.message += f"; {received} had come"
    return error


def _explain(display: OutputOptions, info: ModelInfo, records: Sequence[StreamRecord], out: Output) -> None:
    """Write warnings, the legend and the statistics to stderr."""
    from lmtool.terminal.chat.render import StyledOutput, TokenColorer, stats_lines

    for record in records:
        for warning in record.warnings:
            out.warn(warning if len(records) == 1 else f"{record.index}│ {warning}")
    if out.quiet:
        return
    styled = StyledOutput.of(out)
    legend = TokenColorer(styled.depth, display.heat, info.vocab_size).legend() if out.terminal else []
    sys.stderr.write("".join(styled.styled(*piece) for piece in legend))
    if display.stats:
        for line in stats_lines(records):
            out.note(line)


def _requests(prompt: TypedPrompt, requests: RequestOptions, info: ModelInfo, count: int) -> list[GenerateRequest]:
    params = variants(requests.sampling(info, prompt.values), count)
    deadline = requests.deadline(prompt.values)
    return [requests.request(i + 1, prompt.text, info, params[i], deadline=deadline) for i in range(count)]


def _keep_received(frames: deque[str], direction: str, frame: str) -> None:
    if direction == "<":
        frames.append(frame)


async def _dry_run(
    endpoint: Endpoint, out: Output, prompt: TypedPrompt, requests: RequestOptions, options: OneShotOptions
) -> None:
    """Print the frames that would be sent; the server only describes its model."""
    from lmtool.protocol.lmtp.client_session import ClientSession

    session = ClientSession()

    def follow(direction: str, frame: str) -> None:
        if direction == ">":
            session.ask(requests.model, progress=True)
        else:
            session.receive(frame)

    try:
        async with open_peer(endpoint, out, requests.model, tokenizer=options.tokenizer, on_frame=follow) as peer:
            info, tokenizer = peer.info, peer.tokenizer
    except ConnectError as error:
        out.note(f"{error.message}: assuming a server that accepts text and has no chat template")
        info, tokenizer = ModelInfo("", "", ""), None
    for request in _requests(prompt, requests, info, options.n_streams):
        sendable = replace(request, resumable=options.resume.retries > 0)
        if tokenizer is not None:  # the server accepts ids only, and stop strings are matched here
            ids = tuple(tokenizer.encode_prompt(request.prompt))
            sendable = replace(sendable, prompt=ids, sampling=replace(request.sampling, stop=()), text=False)
        out.line(session.open(sendable, progress=True)[1])


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Raise `TimeLimitError` when the block takes longer; None: no limit."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeLimitError(
            f"no end within {seconds:g} s", "allow more:  --timeout SECONDS", "ask for less:  --max-tokens N"
        ) from None
