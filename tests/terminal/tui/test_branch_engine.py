"""Branches of every kind of stream on a real server, beside what the engine makes of exactly these ids."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from lmtool.core.errors import UsageError
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, Constraint, GenerateRequest, SamplingParams
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.terminal.tui.alignment import Side, compare
from lmtool.terminal.tui.documents.comparison import Branches, ComparisonDocument
from lmtool.terminal.tui.documents.what_if import WhatIfDocument
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.request_builder import TextToScore, branch, editable_text, request_of
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.terminal.tui.sources.http_requests import HttpRequestSource, _ids_in, continue_answer, whole_answer
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.events import Frame, Request
from lmtool.trace.matching import first_difference
from lmtool.trace.proxy import parse_target
from tests.terminal.tui.sources_running import Watch, no_tokenizer, watching
from tests.terminal.tui.states import rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from lmtool.terminal.tui.streams import Stream

SAMPLED: Mapping[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 14}
CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
TOKENIZER = load_tokenizer(str(MODEL_DIR))


@dataclass
class Inspected:
    """A source on the embedded model's server, and the view of what it feeds."""

    watch: Watch
    lines: EventStore
    view: View
    url: str

    async def ended(self, label: str) -> Stream:
        """A stream, once it has ended without an error."""

        def over() -> bool:
            self.lines.feed(self.watch.events)
            self.watch.events.clear()
            found = self.view.state.find(label)
            return found is not None and found.ended is not None

        await self.watch.until(over)
        found = self.view.state.find(label)
        assert found is not None
        assert found.error is None, found.error
        return found

    async def over_http(self, path: str, **body: Any) -> Stream:
        """An answer over HTTP."""
        http = self.watch.source._http
        assert http is not None
        return await self.ended(await http.send(path, {"model": "lmtool-tiny", **body}, {}))

    async def of_engine(self, prompt: tuple[int, ...], **sampling: Any) -> list[int]:
        """Ids that the engine makes of these ids."""
        request = GenerateRequest(1, prompt, SamplingParams(**sampling))
        async with LmtpClient(self.url) as client:
            return [output.token async for output in stream(client, request) if output.token is not None]

    def ids(self, one: Stream) -> list[int]:
        return [self.view.state.tokens.ids[row] for row in one.rows]

    def other(self, one: Stream, position: int) -> Any:
        """An alternative of a token that was not chosen, and is a text of its own."""
        row = one.rows[position]
        names = [name for name, _ in self.view.measures.alternatives(row)]
        return next(name for name in names if name not in (self.view.measures.name(row), "", b""))


@asynccontextmanager
async def inspecting(url: str) -> AsyncIterator[Inspected]:
    source = ConnectSource(url, pytest.fail, find_tokenizer=no_tokenizer)
    lines = EventStore()
    async with watching(source) as watch:
        await source.connect_to(url).connect()
        yield Inspected(watch, lines, View(lines.state, lines), url)
    lines.close()


MESSAGES = ChatPrompt((ChatMessage("user", "Tell me a story about a fox."),))


class TestLmtp:
    """Streams of LMTP."""

    @pytest.mark.parametrize(
        ("prompt", "more"),
        [
            (MESSAGES, {}),
            ("Once upon a time", {}),
            (MESSAGES, {"sampling": {"presence_penalty": 0.7, "frequency_penalty": 0.4}}),
            (MESSAGES, {"constraint": Constraint("regex", "[A-Za-z ,.]+")}),
        ],
        ids=["messages", "text", "penalties", "constraint"],
    )
    async def test_behind_generated_ids(self, prompt: Any, more: dict[str, Any], embedded: str) -> None:
        """The branch has the parent's ids up to the token and the alternative; so it gives what the engine would.

        With the token that was chosen, it is the rest of its parent, seed, penalties and constraint included.
        """
        sampling = SamplingParams(**{**SAMPLED, "top_logprobs": 5, **more.get("sampling", {})})
        request = GenerateRequest(1, prompt, sampling, text=True, constraint=more.get("constraint"))
        async with inspecting(embedded) as seen:
            requests = seen.watch.source._requests
            assert requests is not None
            parent = await seen.ended(await requests._submit(request))
            own, go_on = seen.ids(parent), seen.watch.source.send
            same = await seen.ended(await go_on(branch(seen.view, parent.rows[3], own[3])))
            assert seen.ids(same) == own[4:]
            instead = seen.other(parent, 3)
            child = await seen.ended(await go_on(branch(seen.view, parent.rows[3], instead)))
            sent = request_of(seen.view, child).request
            assert isinstance(sent, GenerateRequest)
            assert (sent.generated, sent.prompt) == ((*own[:3], instead), prompt)
            found = compare(Side(seen.view, parent), Side(seen.view, child)).alignment
            assert (found.same, found.parts, found.names) == (3, True, (own[3], instead))
            if not more:
                ids = TOKENIZER.encode_prompt(prompt)
                plain = {**SAMPLED, "max_tokens": SAMPLED["max_tokens"] - 4}
                assert seen.ids(child) == await seen.of_engine((*ids, *own[:3], instead), **plain)
                for one in (parent, child):
                    foretold = WhatIfDocument(seen.view, one, UNICODE)
                    while foretold.advance(1.0):
                        pass
                    assert (foretold.no_draws, foretold._agrees) == ("", len(one.rows))

    @pytest.mark.parametrize("prompt", [MESSAGES, "Once upon a time"], ids=["messages", "text"])
    async def test_a_score(self, prompt: Any, embedded: str) -> None:
        """Tokens behind a text or messages are scored there, edited or with more typed behind them."""
        request = GenerateRequest(1, prompt, SamplingParams(**SAMPLED, top_logprobs=3), text=True)
        async with inspecting(embedded) as seen:
            requests, score = seen.watch.source._requests, seen.watch.source.send
            assert requests is not None
            parent = await seen.ended(await requests._submit(request))
            own = editable_text(seen.view, parent)
            scored = await seen.ended(await score(own.after_edit(own.line)))
            assert seen.ids(scored) == seen.ids(parent)
            found = compare(Side(seen.view, parent), Side(seen.view, scored))
            assert (found.worst, found.alignment.same) == (0, len(parent.rows))
            longer = await seen.ended(await score(own.after_edit(own.line + " and so on")))
            assert seen.view.state.text(longer) == seen.view.state.text(parent) + " and so on"

    async def test_a_typed_text(self, embedded: str) -> None:
        """It stands behind the kept ids, as the server's tokenizer cuts a text that follows another."""
        request = GenerateRequest(1, (1, 376, 264), SamplingParams(**SAMPLED))
        async with inspecting(embedded) as seen:
            requests, go_on = seen.watch.source._requests, seen.watch.source.send
            assert requests is not None
            parent = await seen.ended(await requests._submit(request))
            own = seen.ids(parent)
            child = await seen.ended(await go_on(branch(seen.view, parent.rows[2], own[2], " little dog")))
            typed = TOKENIZER.encode_continuation(" little dog")
            expected = await seen.of_engine((1, 376, 264, *own[:2], *typed), **{**SAMPLED, "max_tokens": 12})
            assert seen.ids(child) == expected


RETURN_IDS = {"return_token_ids": True}
HTTP = [
    ("/v1/chat/completions", {"messages": CHAT, "logprobs": True, "top_logprobs": 5, "stream": True, **RETURN_IDS}),
    ("/v1/chat/completions", {"messages": CHAT, "logprobs": True, "top_logprobs": 5}),
    ("/v1/chat/completions", {"prompt_token_ids": [1, 376, 264], "logprobs": True, "top_logprobs": 5, "n": 2}),
    ("/v1/completions", {"prompt": "Once upon a time", "logprobs": 5, "stream": True, **RETURN_IDS}),
    ("/v1/completions", {"prompt": [1, 376, 264], "logprobs": 5}),
    ("/v1/responses", {"input": "Tell me a story.", "top_logprobs": 5, "include": ["message.output_text.logprobs"]}),
]


class TestHttp:
    """Answers over HTTP."""

    @pytest.mark.parametrize(("path", "body"), HTTP, ids=["chat", "whole", "ids", "completions", "of-ids", "responses"])
    async def test_the_very_same_ids(self, path: str, body: dict[str, Any], embedded: str) -> None:
        """A branch begins with the ids of prompt, tokens before and alternative, and is what the engine makes of them.

        So is its seed the parent's, and that of the choice where there are several.
        """
        sampling = dict(SAMPLED)
        if "input" in body:
            sampling = {"temperature": 0.9, "max_output_tokens": 14}
        async with inspecting(embedded) as seen:
            parent = await seen.over_http(path, **body, **sampling)
            if "n" in body:
                parent = next(one for one in seen.view.state.streams if one.choice == 1)
            row, instead = parent.rows[4], seen.other(parent, 4)
            answer = continue_answer(seen.view, row, instead)
            asked = {**answer.body, **RETURN_IDS}
            child = await seen.ended(await seen.watch.source.send(type(answer)(**{**_fields(answer), "body": asked})))
            begun, ids = _ids_in(seen.view, child)
            pieces = [seen.view.state.texts.spelling(seen.view.state.tokens.ids[one]) for one in parent.rows[:4]]
            text = instead if isinstance(instead, bytes) else instead.encode()
            assert begun is not None
            assert ids is not None
            assert [TOKENIZER.piece(one) for one in begun[-5:]] == [*pieces, text]
            prompt = _prompt_ids(body)
            assert begun[:-5] == prompt
            own = _ids_in(seen.view, parent)[1]
            assert own is None or begun[-5:-1] == own[:4]
            if "seed" in sampling:
                seed = sampling["seed"] + parent.choice
                assert list(ids) == await seen.of_engine(begun, temperature=0.9, seed=seed, max_tokens=10)
            sides = Branches()
            sides.add(parent.label, 4, child.label, "x", answer.text.encode())
            origin, text_begun = sides.beginning(child.label)
            found = compare(
                Side(seen.view, parent), Side(seen.view, child, (seen.view.state.find(origin) or parent, text_begun))
            )
            ours, theirs = seen.view.state.text(parent), answer.text + seen.view.state.text(child)
            assert found.alignment.characters == first_difference(ours, theirs)
            assert found.notes == ("tokens without ids: aligned by text",)

    @pytest.mark.parametrize("told", [RETURN_IDS, {}], ids=["ids-told", "pieces"])
    async def test_tokens_that_no_text_would_give(self, told: dict[str, Any], embedded: str) -> None:
        """Where the server would cut the text otherwise, it is sent the ids: those of the answer, or of each piece."""
        (letter,) = TOKENIZER.encode_continuation("l")
        assert TOKENIZER.encode_continuation("llll") != [letter] * 4
        biased = {"logit_bias": {str(letter): 100}, "temperature": 0, "max_tokens": 8}
        async with inspecting(embedded) as seen:
            go_on = seen.watch.source.send
            body = {"messages": CHAT, "logprobs": True, "top_logprobs": 5, **biased, **told}
            parent = await seen.over_http("/v1/chat/completions", **body)
            assert seen.view.state.text(parent) == "l" * 8
            answer = continue_answer(seen.view, parent.rows[4], seen.other(parent, 4))
            asked = {**answer.body, **RETURN_IDS}
            child = await seen.ended(await go_on(type(answer)(**{**_fields(answer), "body": asked})))
            begun, ids = _ids_in(seen.view, child)
            assert begun is not None
            assert begun[:-5] == _prompt_ids(body)
            assert begun[-5:-1] == (letter,) * 4
            assert TOKENIZER.piece(begun[-1]) == answer.text[4:].encode()
            assert ids == (letter,) * 8

    async def test_messages(self, embedded: str) -> None:
        """Without alternatives a text is typed; the answer goes on behind it."""
        body = {"messages": CHAT, "max_tokens": 12, "temperature": 0, "stream": True}
        async with inspecting(embedded) as seen:
            parent = await seen.over_http("/v1/messages", **body)
            answer = continue_answer(seen.view, parent.rows[3], "", " a little dog")
            child = await seen.ended(await seen.watch.source.send(answer))
            begun = answer.text
            assert begun == seen.view.state.text(parent, 3) + " a little dog"
            prompt = TOKENIZER.encode_prompt(ChatPrompt(MESSAGES.messages, prefill=begun))
            expected = await seen.of_engine(tuple(prompt), max_tokens=9)
            assert seen.view.state.text(child) == TOKENIZER.decode(expected)

    async def test_a_score(self, embedded: str) -> None:
        """An answer is scored over LMTP behind the ids of its prompt: the same numbers as when it was sampled."""
        body = {"messages": CHAT, "logprobs": True, "top_logprobs": 3, **SAMPLED}
        async with inspecting(embedded) as seen:
            parent = await seen.over_http("/v1/chat/completions", **body)
            scored = await seen.ended(await seen.watch.source.send(whole_answer(seen.view, parent)))
            logprobs = seen.view.state.tokens.logprobs
            assert [logprobs[row] for row in scored.rows] == pytest.approx([logprobs[row] for row in parent.rows])
            found = compare(Side(seen.view, parent), Side(seen.view, scored, (parent, b"")))
            assert (found.alignment.same, found.alignment.parts) == (len(parent.rows), False)
            assert found.worst == pytest.approx(0.0, abs=1e-5)

    @pytest.mark.parametrize(
        ("path", "body", "says"),
        [
            ("/v1/chat/completions", {"messages": CHAT, "response_format": {"type": "json_object"}}, "form"),
            ("/v1/chat/completions", {"messages": CHAT, "presence_penalty": 1.0}, "presence_penalty"),
            ("/v1/completions", {"prompt": "Once", "echo": True}, "echo"),
        ],
    )
    async def test_what_would_be_lost(self, path: str, body: dict[str, Any], says: str, embedded: str) -> None:
        """What depends on generated tokens is refused by name, never dropped."""
        async with inspecting(embedded) as seen:
            parent = await seen.over_http(path, **body, max_tokens=8, temperature=0)
            with pytest.raises(UsageError, match=says):
                continue_answer(seen.view, parent.rows[-1], "", " dog")


def _fields(answer: Any) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in type(answer).__dataclass_fields__}


def _prompt_ids(body: Mapping[str, Any]) -> tuple[int, ...]:
    if "prompt_token_ids" in body:
        return tuple(body["prompt_token_ids"])
    if "input" in body:
        return tuple(TOKENIZER.encode_prompt(ChatPrompt((ChatMessage("user", body["input"]),))))
    if "messages" in body:
        return tuple(TOKENIZER.encode_prompt(MESSAGES))
    prompt = body["prompt"]
    return tuple(prompt) if isinstance(prompt, list) else tuple(TOKENIZER.encode_prompt(prompt))


class Elsewhere(HttpRequestSource):
    """A server that names another owner, and cuts nothing into tokens."""

    async def ask(self, _method: str, path: str, *_: object) -> tuple[int, dict[str, Any]]:
        return (200, {"data": [{"id": "m", "owned_by": "x"}]}) if path == "/v1/models" else (404, {})


async def test_a_server_that_begins_another_answer(embedded: str) -> None:
    """One that does not say that it goes on is not asked: its answer would be another one."""
    base = embedded.replace("ws://", "http://")
    async with inspecting(embedded) as seen:
        parent = await seen.over_http(
            "/v1/chat/completions", messages=CHAT, max_tokens=6, logprobs=True, top_logprobs=3
        )
        answer = continue_answer(seen.view, parent.rows[2], seen.other(parent, 2))
        http = Elsewhere(parse_target(base), seen.watch.source._pipeline, lambda: 99)
        with pytest.raises(UsageError, match="it would start a new one"):
            await http.continue_answer(answer)
        sent = [event for event in seen.watch.events if isinstance(event, Request | Frame)]
        assert not any(event.connection == 99 for event in sent)


async def test_two_models_on_one_text(embedded: str, served: str) -> None:
    """Each scores the text by its own tokenizer, beside the same characters of the other; bits a character compare."""
    text = "Once upon a time there was a little dog."
    sides = []
    for url in (embedded, served):
        source = ConnectSource(
            url, pytest.fail, find_tokenizer=no_tokenizer, scores=[TextToScore("", (), text, whole=text)], stay=False
        )
        lines = EventStore()
        async with watching(source) as watch:
            await watch.until(watch.over.is_set)
            lines.feed(watch.events)
        assert watch.error is None
        view = View(lines.state, lines)
        sides.append(Side(view, view.state.streams[0]))
    shown = rows(ComparisonDocument(*sides, UNICODE), 100)
    found = compare(*sides).alignment
    assert (found.characters, found.parts) == (len(text), False)
    for name, one in zip("AB", sides, strict=True):
        logprobs = [p for row in one.rows if not math.isnan(p := one.view.state.tokens.logprobs[row])]
        first = len(one.rows) - len(logprobs)
        characters = sum(len(one.view.state.texts.text_at(one.stream, i)) for i in range(first, len(one.rows)))
        bits = -math.fsum(logprobs) / math.log(2) / characters
        assert f"{name} {bits:.3f} bits a character" in "\n".join(shown)
