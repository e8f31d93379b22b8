"""Actions that send requests (branches, prompts, scores) on the inspector's own connection, never on a watched one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.terminal.tui import request_builder
from lmtool.terminal.tui.request_builder import LINE_FEED, editable_text
from lmtool.terminal.tui.runs import visible
from lmtool.terminal.tui.screens.dialogs import LONGEST, AskScreen
from lmtool.terminal.tui.sources.demo import racing
from lmtool.terminal.tui.sources.http_requests import continue_answer, whole_answer
from lmtool.terminal.tui.sources.requests import parse_prompt, parse_score

if TYPE_CHECKING:
    from lmtool.core.types import GenerateRequest
    from lmtool.terminal.tui.actions.context import ActionContext
    from lmtool.terminal.tui.request_builder import Continuation, HttpContinuation, TextToScore
    from lmtool.terminal.tui.streams import Stream

HISTORY = 200
"""Prompts that the up key recalls."""


def no_server(app: ActionContext) -> str:
    """Reason that no request can be sent; empty if one can."""
    if app.source is None:
        return "a file answers nothing: open it with  --connect ws://HOST:PORT"
    return "" if app.source.takes_requests else app.source.no_requests or "not connected yet"


def no_branch(app: ActionContext) -> str:
    """Reason that no token of the current stream can be continued; empty if one can."""
    stream, source = app.view.current, app.source
    if stream is None or stream.api is None or source is None:
        return no_server(app)
    if source.takes_http:
        return ""
    return source.no_requests or "HTTP answers are continued over HTTP, and this server has no HTTP address"


async def _send(
    app: ActionContext, request: GenerateRequest | Continuation | TextToScore | HttpContinuation
) -> str | None:
    """Send a request and move the cursor to its stream; the stream's label, or None after an error message."""
    assert app.source is not None
    try:
        label = await app.source.send(request)
    except LmtoolError as error:
        app.say_error(error)
        return None
    app.next_stream, app.view.from_beginning = label, False
    app.resume_source()
    return label


# Branches.


def branch(app: ActionContext) -> None:
    """Start a stream from the alternative under the cursor; without alternatives, ask for a text."""
    row = app.view.token
    if row is None:
        app.say("no token yet")
        return
    top = app.view.measures.alternatives(row)
    if top:
        _branch(app, row, top[min(app.view.bar, len(top) - 1)][0])
        return
    hint = "this token has no alternatives (top_logprobs=5 requests some): what shall stand in its place?"
    app.push_screen(
        AskScreen("Go on with", hint, app.looks), lambda text: app.attempt(lambda: branch_with(app, text or ""))
    )


def branch_with(app: ActionContext, text: str) -> None:
    """Start a stream with this text instead of the token under the cursor."""
    row = app.view.token
    if row is not None and text:
        _branch(app, row, text, typed=text.replace(LINE_FEED, "\n"))


def bias_out(app: ActionContext) -> None:
    """Start a stream in which the alternative under the cursor is ruled out."""
    view, row = app.view, app.view.token
    top = view.measures.alternatives(row) if row is not None else ()
    if row is None or not top:
        app.say("no token yet" if row is None else "this token has no alternatives; request some with top_logprobs=5")
        return
    token = top[min(view.bar, len(top) - 1)][0]
    _send_branch(app, row, f"not {view.measures.quote(token)}", request_builder.bias_out(view, row, token))


def _branch(app: ActionContext, row: int, instead: int | str | bytes, *, typed: str = "") -> None:
    view = app.view
    own = view.state.texts.of_id(instead) if isinstance(instead, int) else instead
    own = typed or (own if isinstance(own, str) else own.decode(errors="replace"))
    sign = repr(visible(typed)) if typed else view.measures.quote(instead)
    build = request_builder.branch if view.state.stream_of(row).api is None else continue_answer
    _send_branch(app, row, sign, build(view, row, instead, typed), own, has_beginning=True)


def _send_branch(
    app: ActionContext,
    row: int,
    sign: str,
    continuation: Continuation | HttpContinuation,
    own: str = "",
    *,
    has_beginning: bool = False,
) -> None:
    """Send a branch and record its parent. own: see `View.branch_tokens`. has_beginning: for `Branch.beginning`."""
    parent, position = app.view.state.stream_of(row), app.view.position(row)

    async def send() -> None:
        label = await _send(app, continuation)
        if label is not None:
            app.branches.add(parent.label, position, label, sign, continuation.beginning if has_beginning else None)
            app.view.branch_tokens[label] = own
            key = app.keys.sign("tree")
            app.say(f"stream {label} goes on from {parent.label} at token #{position}; {key} shows the tree")

    app.run_worker(send())


# Prompts.


def prompt(app: ActionContext) -> None:
    """Ask for a prompt and send it."""
    hint = "words at the end such as max_tokens=50 temperature=.8 set parameters; up brings the last line back"

    def problem(text: str) -> str:
        try:
            parse_prompt(text)
        except LmtoolError as error:
            return error.message
        return ""

    def submit(text: str | None) -> None:
        if text:
            send_prompt(app, text)

    app.push_screen(AskScreen("Prompt", hint, app.looks, check=problem, history=app.prompts), submit)


def send_prompt(app: ActionContext, text: str) -> None:
    """Send this prompt; words at its end set parameters. Raises `UsageError` for invalid values."""
    request = parse_prompt(text)
    app.prompts[:] = [*app.prompts, text][-HISTORY:]

    async def send() -> None:
        label = await _send(app, request)
        if label is not None:
            app.say(f"stream {label}")

    app.run_worker(send())


def demo(app: ActionContext) -> None:
    """Send the prompts of the demo, all at once."""
    requests = racing()

    async def send() -> None:
        for request in requests:
            if await _send(app, request) is None:
                return
        app.say(f"{len(requests)} streams: {app.keys.sign('follow')} follows one, {app.keys.sign('compare')} compares")

    app.run_worker(send())


# Scores.


def score(app: ActionContext) -> None:
    """Have the tokens of the current stream scored, or a text that is asked for."""
    stream, source = app.view.current, app.source
    hint = "PROMPT => TEXT gives each token of TEXT its logprob after PROMPT; without => the whole text is scored."
    if stream is not None and stream.api is not None and source is not None and source.takes_http:
        _score_answer(app, stream)
        return
    if stream is not None:
        try:
            _score_tokens(app, stream)
        except LmtoolError as error:
            hint = f"{error.message}. {hint}"
        else:
            return
    app.push_screen(AskScreen("Score", hint, app.looks), lambda text: score_text(app, text or ""))


def _score_answer(app: ActionContext, stream: Stream) -> None:
    """Have an HTTP answer scored after its own prompt; its text may be edited first."""
    answer = whole_answer(app.view, stream)
    line = "".join(map(visible, answer.text))
    hint = (
        f"the text of {stream.label} behind its own prompt; unedited, its tokens stay what they are, edited "
        f"({LINE_FEED} is a line feed) all of it is tokenized anew"
    )

    def submit(text: str | None) -> None:
        if text:
            edited = replace(answer, text=text.replace(LINE_FEED, "\n"), pieces=None, ids=None)
            _send_score(app, answer if text == line else edited, stream.label, f"the text of {stream.label}")

    app.push_screen(AskScreen("Score", hint, app.looks, value=line), submit)


def _score_tokens(app: ActionContext, stream: Stream) -> None:
    """Have a stream's tokens scored after its own prompt; their text may be edited first. Raises `UsageError`."""
    own = editable_text(app.view, stream)

    def submit(text: str | None) -> None:
        edited = None if text is None else own.after_edit(text)
        if edited is not None and (edited.whole or edited.before):
            same, rest = len(edited.before) + len(edited.after), ", the rest tokenized anew" if edited.text else ""
            _send_score(app, edited, stream.label, f"{same} tokens of {stream.label} as they are{rest}")

    if len(own.line) > LONGEST:
        submit(own.line)
        return
    hint = (
        f"the tokens of {stream.label} after its own prompt, as they are; edit the text ({LINE_FEED} is a line "
        "feed), and what differs is tokenized anew"
    )
    app.push_screen(AskScreen("Score", hint, app.looks, value=own.line), submit)


def score_text(app: ActionContext, text: str) -> None:
    """Have a typed text scored: `PROMPT => TEXT`, or all of it."""
    if (typed := parse_score(text)).whole:
        _send_score(app, typed, "", "")


def _send_score(app: ActionContext, request: TextToScore | HttpContinuation, origin: str, scored: str) -> None:
    """origin: label of the stream whose text this is, empty for a typed text. scored: description for the message."""

    async def send() -> None:
        label = await _send(app, request)
        if label is None:
            return
        if origin:
            app.branches.scores[label] = origin
            app.say(f"stream {label} scores {scored}; {app.keys.sign('compare')} compares")
        else:
            app.say(f"stream {label}")

    app.run_worker(send())


def cancel(app: ActionContext) -> None:
    """Cancel the current stream if it was started here."""
    stream = app.view.current
    if stream is None or app.source is None:
        app.say("no stream to end" if stream is None else "a file has no running streams")
    elif stream.ended is not None:
        app.say(f"stream {stream.label} is over already")
    else:
        app.source.cancel(stream.label)
        app.say(f"ending {stream.label}, if it was begun here: no other stream can be ended")
