"""Actions that send requests: branches, prompts, scores; on the inspector's own connection, never on a watched one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.terminal.tui import request_builder
from lmtool.terminal.tui.http_continuation import continue_answer, whole_answer
from lmtool.terminal.tui.request_builder import LINE_FEED, editable_text
from lmtool.terminal.tui.runs import visible
from lmtool.terminal.tui.screens.dialogs import LONGEST, AskScreen
from lmtool.terminal.tui.sources.demo import racing
from lmtool.terminal.tui.sources.requests import parse_prompt, parse_score

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lmtool.core.types import GenerateRequest
    from lmtool.terminal.tui.actions.context import ActionContext
    from lmtool.terminal.tui.continuation import Continuation
    from lmtool.terminal.tui.request_builder import EditableText
    from lmtool.terminal.tui.sources.requests import TextToScore
    from lmtool.terminal.tui.streams import Stream

HISTORY = 200
"""Prompts that the up key goes back through."""


def no_server(app: ActionContext) -> str:
    """Why no request can be sent."""
    if app.source is None:
        return "a file answers nothing: open it with  --connect ws://HOST:PORT"
    return "" if app.source.generate is not None else app.source.no_requests or "not connected yet"


def no_scoring(app: ActionContext) -> str:
    """Why nothing can be scored."""
    no_scores = app.source is not None and app.source.score is None
    return no_server(app) or ("this source cannot score" if no_scores else "")


def no_branch(app: ActionContext) -> str:
    """Why nothing can go on from a token of the stream under the cursor."""
    stream, source = app.view.current, app.source
    if stream is None or stream.api is None or source is None:
        return no_server(app)
    if source.continue_http is not None:
        return ""
    return source.no_requests or "HTTP answers go on over HTTP, and this server has no address for it"


def branch(app: ActionContext) -> None:
    """Go on from the alternative under the cursor in a new stream; where there are none, ask for a text."""
    row = app.view.token
    if row is None:
        app.say("no token yet")
        return
    top = app.view.measures.alternatives(row)
    if top:
        _branch(app, row, top[min(app.view.bar, len(top) - 1)][0])
        return
    hint = "this token has no alternatives (top_logprobs=5 requests some): what shall stand in its place?"
    app.push_screen(AskScreen("Go on with", hint, app.looks), lambda text: branch_with(app, text or ""))


def branch_with(app: ActionContext, text: str) -> None:
    """Go on with this text in the place of the token under the cursor, in a new stream."""
    row = app.view.token
    if row is not None and text:
        _branch(app, row, text, typed=text.replace(LINE_FEED, "\n"))


def bias_out(app: ActionContext) -> None:
    """Go on without the alternative under the cursor in a new stream."""
    view, row = app.view, app.view.token
    top = view.measures.alternatives(row) if row is not None else ()
    if row is None or not top:
        app.say("no token yet" if row is None else "this token has no alternatives; request some with top_logprobs=5")
        return
    token = top[min(view.bar, len(top) - 1)][0]
    try:
        continuation = request_builder.bias_out(view, row, token)
    except LmtoolError as error:
        app.say_error(error)
        return
    _send_branch(app, row, f"not {view.measures.quote(token)}", _continued(app, continuation))


def _branch(app: ActionContext, row: int, instead: int | str | bytes, *, typed: str = "") -> None:
    view = app.view
    stream = view.state.stream_of(row)
    own = view.state.texts.of_id(instead) if isinstance(instead, int) else instead
    own = typed or (own if isinstance(own, str) else own.decode(errors="replace"))
    sign = repr(visible(typed)) if typed else view.measures.quote(instead)
    try:
        if stream.api is None:
            continuation = request_builder.branch(view, row, instead, typed)
            sending, begun = _continued(app, continuation), continuation.beginning
        else:
            answer = continue_answer(view, row, instead, typed)
            assert app.source is not None
            assert app.source.continue_http is not None
            sending, begun = app.source.continue_http(answer), answer.text.encode()
    except LmtoolError as error:
        app.say_error(error)
        return
    _send_branch(app, row, sign, sending, begun, own)


def _continued(app: ActionContext, continuation: Continuation) -> Awaitable[str]:
    assert app.source is not None
    assert app.source.continue_stream is not None
    return app.source.continue_stream(continuation)


def _send_branch(
    app: ActionContext, row: int, sign: str, sending: Awaitable[str], begun: bytes | None = None, own: str = ""
) -> None:
    """Send a branch, and note whose child it is. begun: see `Branch.beginning`. own: see `View.branch_tokens`."""
    parent, position = app.view.state.stream_of(row), app.view.position(row)

    async def send() -> None:
        label = await _label_of(app, sending)
        if label is not None:
            app.branches.add(parent.label, position, label, sign, begun)
            app.view.branch_tokens[label] = own
            key = app.keys.sign("tree")
            app.say(f"stream {label} goes on from {parent.label} at token #{position}; {key} shows the tree")

    app.run_worker(send())


async def _send(app: ActionContext, request: GenerateRequest) -> str | None:
    assert app.source is not None
    assert app.source.generate is not None
    return await _label_of(app, app.source.generate(request))


async def _label_of(app: ActionContext, request: Awaitable[str]) -> str | None:
    """The label of a request's stream, to which the cursor goes; None where it could not be sent."""
    try:
        label = await request
    except LmtoolError as error:
        app.say_error(error)
        return None
    app.next_stream, app.view.from_beginning = label, False
    app.resume_source()
    return label


def prompt(app: ActionContext) -> None:
    """Ask for a prompt and send it."""
    hint = "words at the end such as max_tokens=50 temperature=.8 set parameters; up brings the last line back"

    def submit(text: str | None) -> None:
        if text:
            send_prompt(app, text)

    app.push_screen(AskScreen("Prompt", hint, app.looks, check=_problem, history=app.prompts), submit)


def send_prompt(app: ActionContext, text: str) -> None:
    """Send this prompt; words at its end set parameters. Raises `UsageError` for values that make no sense."""
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


def _problem(text: str) -> str:
    try:
        parse_prompt(text)
    except LmtoolError as error:
        return error.message
    return ""


def score(app: ActionContext) -> None:
    """Have the stream's tokens scored, or a text that is asked for."""
    stream = app.view.current
    hint = "PROMPT => TEXT gives each token of TEXT its logprob after PROMPT; without => the whole text is scored."
    if stream is not None and stream.api is not None and app.source is not None and app.source.score_answer is not None:
        _score_answer(app, stream)
        return
    if stream is not None:
        try:
            own = editable_text(app.view, stream)
        except LmtoolError as error:
            hint = f"{error.message}. {hint}"
        else:
            _score_own(app, stream, own)
            return
    app.push_screen(AskScreen("Score", hint, app.looks), lambda text: _score(app, parse_score(text or ""), ""))


def _score_answer(app: ActionContext, stream: Stream) -> None:
    """Have an HTTP answer scored behind its own prompt; a person may edit its text before."""
    try:
        answer = whole_answer(app.view, stream)
    except LmtoolError as error:
        app.say_error(error)
        return
    line = "".join(map(visible, answer.text))
    hint = (
        f"the text of {stream.label} behind its own prompt; unedited, its tokens stay what they are, edited "
        f"({LINE_FEED} is a line feed) all of it is tokenized anew"
    )

    def submit(text: str | None) -> None:
        if not text:
            return
        edited = answer if text == line else replace(answer, text=text.replace(LINE_FEED, "\n"), pieces=None, ids=None)
        assert app.source is not None
        assert app.source.score_answer is not None
        scored = app.source.score_answer(edited)

        async def send() -> None:
            label = await _label_of(app, scored)
            if label is not None:
                app.branches.scores[label] = stream.label
                app.say(f"stream {label} scores the text of {stream.label}; {app.keys.sign('compare')} compares")

        app.run_worker(send())

    app.push_screen(AskScreen("Score", hint, app.looks, value=line), submit)


def _score_own(app: ActionContext, stream: Stream, own: EditableText) -> None:
    """Have a stream's tokens scored after its own prompt; a person may edit their text before."""
    line = own.line
    if len(line) > LONGEST:
        _score(app, own.after_edit(line), stream.label)
        return
    hint = (
        f"the tokens of {stream.label} after its own prompt, as they are; edit the text ({LINE_FEED} is a line "
        "feed), and what differs is tokenized anew"
    )
    app.push_screen(
        AskScreen("Score", hint, app.looks, value=line),
        lambda text: _score(app, None if text is None else own.after_edit(text), stream.label),
    )


def score_text(app: ActionContext, text: str) -> None:
    """Have this text scored: `PROMPT => TEXT`, or all of it."""
    _score(app, parse_score(text), "")


def _score(app: ActionContext, text: TextToScore | None, origin: str) -> None:
    """origin: the stream whose tokens these are; empty for a text of a person's own."""
    source = app.source
    if text is None or not (text.whole or text.before) or source is None or source.score is None:
        return
    request = source.score(text)

    async def send() -> None:
        label = await _label_of(app, request)
        if label is None:
            return
        sentence = f"stream {label}"
        if origin:
            app.branches.scores[label] = origin
            same, rest = len(text.before) + len(text.after), ", the rest tokenized anew" if text.text else ""
            sentence += f" scores {same} tokens of {origin} as they are{rest}; {app.keys.sign('compare')} compares"
        app.say(sentence)

    app.run_worker(send())


def cancel(app: ActionContext) -> None:
    """End a stream of the inspector's own."""
    stream = app.view.current
    if stream is None or app.source is None:
        app.say("no stream to end" if stream is None else "a file has no running streams")
    elif stream.ended is not None:
        app.say(f"stream {stream.label} is over already")
    else:
        app.source.cancel(stream.label)
        app.say(f"ending {stream.label}, if it was begun here: no other stream can be ended")
