"""A model that speaks text: prompts in, whole characters out, stop strings watched for."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import InvalidAnswerError, RequestError
from lmtool.core.interfaces import Verdict
from lmtool.core.prompt_limits import LimitsByModel, PromptLimits
from lmtool.core.streams import stream
from lmtool.core.types import (
    ChatMessage,
    ChatPrompt,
    Constraint,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
    StreamId,
    TokenOutput,
    Usage,
)
from lmtool.inference.text import workers
from lmtool.inference.text.text_model import TextModel
from lmtool.inference.text.tokenizer import TextTokenizer, load_tokenizer
from lmtool.net.subprocesses.work_queue import WorkQueue
from tests.inference.text.conftest import STORIES
from tests.inference.text.scripted import END, Collector, ScriptedCheck, ScriptedModel, generate, said
from tests.protocol.lmtp.harness import until


@pytest.fixture
def folder_tokenizer() -> TextTokenizer:
    """One of its own, which may be changed."""
    return load_tokenizer(str(STORIES))


def replace_limits(tokenizer: TextTokenizer) -> TextTokenizer:
    """The same without limits."""
    tokenizer.limits = None
    return tokenizer


class TestPrompts:
    """What goes in."""

    async def test_ids_pass_untouched(self, byte_level: TextTokenizer) -> None:
        """A stream of ids that asks for no text goes to the inner model as it is, with its own sink and handle."""
        inner, sink = ScriptedModel([5]), Collector()
        model = TextModel(inner, byte_level)
        for request in (
            generate(1, (1, 2), text=False),
            generate(2, (), text=False),
            ScoreRequest(3, (1,), (2,)),
            ScoreRequest(4, (), ()),
        ):
            handle = model.submit(request, sink)
            assert inner.submitted[-1].request is request
            assert inner.submitted[-1].sink is sink
            assert handle is inner.submitted[-1]

    async def test_text_prompt(self, stories: TextTokenizer) -> None:
        """A string prompt is tokenized as a text's start, bos in front; without text its sink is still the original."""
        inner, sink = ScriptedModel([403]), Collector()
        TextModel(inner, stories).submit(generate("x", "Once upon", text=False), sink)
        assert inner.submitted[0].request.prompt == (1, 403, 407)
        assert inner.submitted[0].request.stream_id == "x"
        assert inner.submitted[0].sink is sink

    async def test_scored_text(self, stories: TextTokenizer) -> None:
        """A scored string is tokenized as what follows the prompt."""
        inner = ScriptedModel()
        TextModel(inner, stories).submit(ScoreRequest(1, "Once", " upon"), Collector())
        request = inner.submitted[0].request
        assert isinstance(request, ScoreRequest)
        assert (request.prompt, request.scored) == ((1, 403), (407,))

    async def test_messages(self, byte_level: TextTokenizer) -> None:
        """Messages go through the chat template."""
        tokenizer = TextTokenizer(
            byte_level._tokenizer,
            byte_level.info,
            named_tokens={},
            template="{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>",
        )
        inner = ScriptedModel()
        model = TextModel(inner, tokenizer)
        model.submit(generate(1, ChatPrompt((ChatMessage("user", "one"),))), Collector())
        await until(lambda: inner.submitted)  # the template of a stranger is rendered in another process
        assert inner.submitted[0].request.prompt == (1, *byte_level.encode("one"), 2)
        assert (await model.info()).chat_template

    async def test_inner_request_is_of_ids(self, byte_level: TextTokenizer) -> None:
        """The inner model sees neither stop strings nor the wish for text; all else stays."""
        inner = ScriptedModel()
        TextModel(inner, byte_level).submit(
            replace(generate(1, (3,), stop=("x",), seed=7, max_tokens=9), model="m"), Collector()
        )
        request = inner.submitted[0].request
        assert request.sampling == SamplingParams(seed=7, max_tokens=9)
        assert (request.text, request.model) == (False, "m")

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [
            (generate(1, ChatPrompt((ChatMessage("user", "a"),))), "no chat template"),
            (generate(1, "a\ud800"), "surrogate"),
            (generate(1, (1,), stop=("",)), "empty"),
            (generate(1, "a\ud800" * 20_000), "surrogate"),
        ],
    )
    async def test_refusal(self, byte_level: TextTokenizer, request_: GenerateRequest, reason: str) -> None:
        """A request that cannot be served ends with an error, after submit has returned, once."""
        inner, sink = ScriptedModel(), Collector()
        handle = TextModel(inner, byte_level).submit(request_, sink)
        assert not sink.calls
        handle.pause()
        async with asyncio.timeout(10):
            while not sink.calls:
                await asyncio.sleep(0)
        handle.cancel()
        await asyncio.sleep(0)
        [[output]] = sink.calls
        assert reason in output.error
        assert output.error_code == RequestError.code
        assert not inner.submitted


class TestLongTexts:
    """Long texts are tokenized in a thread."""

    async def test_stream(self, byte_level: TextTokenizer) -> None:
        """The stream starts when its prompt is read, paused if it was paused; others start meanwhile."""
        inner, sink = said(byte_level, "yes"), Collector()
        model = TextModel(inner, byte_level)
        long = "one two " * 4000
        handle = model.submit(generate(1, long), sink)
        handle.pause()
        assert not inner.submitted
        model.submit(generate(2, "short"), sink)
        assert len(inner.submitted) == 1
        assert await model.drain(10) == 2
        assert inner.drained is not None
        assert inner.submitted[1].request.prompt == tuple(byte_level.encode(long))
        assert inner.submitted[1].paused
        handle.resume()
        inner.run()
        assert sink.text(1) == sink.text(2) == "yes"
        model.close()
        assert inner.closed

    async def test_cancel_before_it_starts(self, byte_level: TextTokenizer) -> None:
        """A stream that is cancelled while its prompt is read ends then and never starts."""
        inner, sink = ScriptedModel(), Collector()
        model = TextModel(inner, byte_level)
        handle = model.submit(generate(1, "one two " * 4000), sink)
        handle.cancel()
        await asyncio.sleep(0)
        assert sink.calls == [[TokenOutput(1, finish_reason="cancelled")]]
        await model.drain(10)
        assert not inner.submitted
        assert len(sink.calls) == 1
        model.close()

    async def test_what_nobody_waits_for_is_not_tokenized(
        self, byte_level: TextTokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither for streams that were cancelled nor, once the model is closed, for those that wait, which fail."""
        queue = WorkQueue(1, "test")
        monkeypatch.setattr(workers, "_queue", queue)
        begun, go_on = threading.Event(), threading.Event()
        first = queue.put(0, lambda: (begun.set(), go_on.wait(60)))
        await asyncio.to_thread(begun.wait, 60)
        tokenized: list[object] = []
        monkeypatch.setattr(byte_level, "encode", lambda text, **_named: tokenized.append(text) or [])
        model, sink = TextModel(ScriptedModel(), byte_level), Collector()
        model.submit(generate(1, "one two " * 4000), sink).cancel()
        other = TextModel(ScriptedModel(), byte_level)
        other.submit(generate(2, "one two " * 4000), sink)
        other.close()
        await asyncio.sleep(0)
        go_on.set()
        await model.drain(10)
        assert first.done()
        await asyncio.sleep(0)
        assert sink.of(1) == [TokenOutput(1, finish_reason="cancelled")]
        assert [one.error for one in sink.of(2)] == ["the model was closed before the prompt was read"]
        assert not tokenized


class LimitedModel(ScriptedModel):
    """One that tells how long its context is."""

    @property
    def limits(self) -> LimitsByModel:
        return {None: PromptLimits("scripted", 30)}


class TestLimits:
    """What a model without room for it need not see."""

    async def test_they_are_the_models(self, folder_tokenizer: TextTokenizer) -> None:
        """Its context, and the bytes that so many tokens can have; the tokenizer keeps to them, too."""
        model = TextModel(LimitedModel(), folder_tokenizer)
        own = PromptLimits("scripted", 30, 30 * 4 * folder_tokenizer.longest_token_bytes)
        assert model.limits == {None: own}
        assert folder_tokenizer.limits == own
        assert TextModel(ScriptedModel(), replace_limits(folder_tokenizer)).limits == {}

    @pytest.mark.parametrize(
        ("request_", "told"),
        [
            (generate(1, "x" * 10_000), "prompt is too long: at least "),
            (generate(1, (1,) * 100), "prompt is too long: 100 tokens > "),
            (generate(1, ChatPrompt((ChatMessage("user", "x" * 10_000),))), "prompt is too long: at least "),
            (ScoreRequest(1, "x", "x" * 10_000), "prompt is too long: at least "),
            (ScoreRequest(1, (1,), (1,) * 100, text=True), "prompt is too long: 101 tokens > "),
        ],
    )
    async def test_refusal(
        self, folder_tokenizer: TextTokenizer, request_: GenerateRequest | ScoreRequest, told: str
    ) -> None:
        """The stream ends with what is too long and how long it may be, and nothing is tokenized."""
        inner, sink = LimitedModel(), Collector()
        TextModel(inner, folder_tokenizer).submit(request_, sink)
        await asyncio.sleep(0)
        [[output]] = sink.calls
        assert output.error is not None
        assert told in output.error
        assert output.error_code == "context_overflow"
        assert not inner.submitted


class TestText:
    """What comes out."""

    async def test_every_token_has_its_text(self, byte_level: TextTokenizer) -> None:
        """Each token carries the text it completes, perhaps none, beside its id and logprobs; eos has no text."""
        inner, sink = said(byte_level, "a🙂"), Collector()
        TextModel(inner, byte_level).submit(generate(), sink)
        inner.run()
        outputs = sink.of(1)
        assert [output.token for output in outputs] == [*byte_level.encode("a🙂"), END]
        assert "".join(output.text for output in outputs) == "a🙂"
        assert outputs[-1].text == ""
        assert outputs[-1].finish_reason == "stop"
        assert outputs[-1].usage == Usage(0, len(outputs), 1)
        assert {output.logprob for output in outputs} == {-0.5}
        assert all(output.top_logprobs for output in outputs)

    async def test_prompt_is_the_context(self, stories: TextTokenizer) -> None:
        """Text continues the prompt: the blank between prompt and first token is there."""
        for prompt in ("Once", (1, 403)):
            inner, sink = ScriptedModel([407]), Collector()
            TextModel(inner, stories).submit(generate(1, prompt), sink)
            inner.run()
            assert sink.text(1) == " upon"

    async def test_open_character(self, byte_level: TextTokenizer) -> None:
        """A character that the end leaves open comes with the last output, as U+FFFD."""
        token = byte_level._tokenizer.token_to_id("ð")
        for script, tokens in (([token], [token]), ([token, token], [token, token])):
            inner, sink = ScriptedModel(script), Collector()
            TextModel(inner, byte_level).submit(generate(), sink)
            inner.run()
            assert [output.token for output in sink.of(1)] == tokens
            assert sink.of(1)[-1].text.endswith("\ufffd")

    async def test_score(self, stories: TextTokenizer) -> None:
        """Scored tokens carry their text."""
        inner, sink = ScriptedModel(), Collector()
        TextModel(inner, stories).submit(ScoreRequest(1, "Once", " upon a time", text=True), sink)
        inner.run()
        assert [output.text for output in sink.of(1)] == [" upon", " a", " time"]

    async def test_one_call_a_step(self, byte_level: TextTokenizer) -> None:
        """All streams of a sink come in one call a step, those of other sinks in others."""
        inner, sink, other = said(byte_level, "abc"), Collector(), Collector()
        model = TextModel(inner, byte_level)
        for stream_id in range(4):
            model.submit(generate(stream_id), sink)
        model.submit(generate("other"), other)
        inner.step()
        assert [[output.stream_id for output in call] for call in sink.calls] == [[0, 1, 2, 3]]
        assert [[output.stream_id for output in call] for call in other.calls] == [["other"]]

    async def test_handle(self, byte_level: TextTokenizer) -> None:
        """Pause, resume and cancel reach the inner stream; held-back text comes with the cancelled output."""
        inner, sink = said(byte_level, "abcdef"), Collector()
        handle = TextModel(inner, byte_level).submit(generate(stop=("abX",)), sink)
        inner.step(2)
        assert sink.text(1) == ""
        handle.pause()
        inner.step()
        assert len(sink.of(1)) == 2
        handle.resume()
        handle.cancel()
        inner.step()
        assert sink.of(1)[-1] == TokenOutput(
            1, text="ab", finish_reason="cancelled", usage=Usage(0, 2, cached_tokens=1)
        )
        handle.cancel()
        handle.pause()
        handle.resume()

    async def test_inner_error(self, byte_level: TextTokenizer) -> None:
        """An error of the inner stream is the stream's error."""
        inner, sink = said(byte_level, "abc"), Collector()
        TextModel(inner, byte_level).submit(generate("s"), sink)
        inner.broken = "out of memory"
        inner.step()
        assert sink.of("s") == [TokenOutput("s", error="out of memory", error_code="server")]

    async def test_iterator(self, byte_level: TextTokenizer) -> None:
        """The model works with the iterator for single streams."""
        inner = said(byte_level, "one two")
        asyncio.get_running_loop().call_soon(inner.run)
        outputs = [output async for output in stream(TextModel(inner, byte_level), generate())]
        assert "".join(output.text for output in outputs) == "one two"

    async def test_info(self, byte_level: TextTokenizer) -> None:
        """The description tells the tokenizer."""
        info = await TextModel(ScriptedModel(), byte_level).info("m")
        assert (info.model, info.tokenizer, info.chat_template) == ("m", byte_level.info, False)


class TestStopStrings:
    """Streams that a text ends."""

    async def test_cut(self, byte_level: TextTokenizer) -> None:
        """The token that completes the match is the last output: text before the match, `stop`, what was used."""
        inner, sink = ScriptedModel(byte_level.encode("one.END two")), Collector()
        TextModel(inner, byte_level).submit(generate(1, (5, 6), stop=("END",)), sink)
        inner.run()
        outputs = sink.of(1)
        assert sink.text(1) == "one."
        assert byte_level.decode([output.token for output in outputs]) == "one.END"
        assert (outputs[-1].finish_reason, outputs[-1].stopped_by) == ("stop", "END")
        assert outputs[-1].usage == Usage(2, len(outputs), cached_tokens=1)
        assert outputs[-1].token is not None
        assert [output.last for output in outputs].count(True) == 1
        assert inner.submitted[0].cancelled
        assert inner.submitted[0].left

    async def test_rest_of_a_batch_is_dropped(self, byte_level: TextTokenizer) -> None:
        """Tokens that come in one call with the one that completes the match are not passed on."""
        inner, sink = ScriptedModel(byte_level.encode("aENDbcd")), Collector()
        TextModel(inner, byte_level).submit(generate(stop=("END",)), sink)
        inner.step(tokens=100)
        assert sink.text(1) == "a"
        assert sink.of(1)[-1].finish_reason == "stop"
        assert len(sink.of(1)) == len(byte_level.encode("aEND"))

    async def test_held_back_text_comes_at_the_end(self, byte_level: TextTokenizer) -> None:
        """What might have become a match comes with the last token, with no output of its own."""
        inner, sink = said(byte_level, "one EN"), Collector()
        TextModel(inner, byte_level).submit(generate(stop=("END",)), sink)
        inner.run()
        assert sink.text(1) == "one EN"
        assert sink.of(1)[-1].token == END
        assert sink.of(1)[-1].text == "EN"
        assert sink.of(1)[-1].finish_reason == "stop"

    async def test_match_by_the_last_token(self, byte_level: TextTokenizer) -> None:
        """A match that the last token of `max_tokens` completes ends with `stop`, with the inner model's counts."""
        inner, sink = ScriptedModel(byte_level.encode("aEND")), Collector()
        TextModel(inner, byte_level).submit(generate(stop=("END",)), sink)
        inner.run()
        assert sink.text(1) == "a"
        assert sink.of(1)[-1].finish_reason == "stop"
        assert sink.of(1)[-1].usage.cached_tokens == 1
        assert not inner.submitted[0].cancelled

    async def test_special_tokens_are_invisible(self, byte_level: TextTokenizer) -> None:
        """Stop strings are sought in what is shown: special tokens inside a match do not hide it."""
        script = [*byte_level.encode("aE"), 1, *byte_level.encode("ND"), *byte_level.encode("b")]
        inner, sink = ScriptedModel(script), Collector()
        TextModel(inner, byte_level).submit(generate(stop=("END",)), sink)
        inner.run()
        assert sink.text(1) == "a"

    async def test_without_text(self, byte_level: TextTokenizer) -> None:
        """A stream of ids stops at the same token and carries no text."""
        inner, sink = ScriptedModel(byte_level.encode("oneENDtwo")), Collector()
        TextModel(inner, byte_level).submit(generate(1, (5,), text=False, stop=("END",)), sink)
        inner.run()
        assert byte_level.decode([output.token for output in sink.of(1)]) == "oneEND"
        assert {output.text for output in sink.of(1)} == {None}
        assert sink.of(1)[-1].finish_reason == "stop"

    async def test_id_is_free_at_once(self, byte_level: TextTokenizer) -> None:
        """After the last output the id may be used again, though the inner stream is still on its way out."""
        inner, sink = ScriptedModel(byte_level.encode("aENDb")), Collector()
        model = TextModel(inner, byte_level)
        model.submit(generate(stop=("END",)), sink)
        while not sink.of(1) or not sink.of(1)[-1].last:
            inner.step()
        model.submit(generate(stop=("b",)), sink)
        inner.run()
        assert sink.text(1) == "aaEND"
        assert [output.finish_reason for output in sink.of(1) if output.last] == ["stop", "stop"]
        assert not model._channels

    async def test_under_a_constraint(self, byte_level: TextTokenizer) -> None:
        """The stream ends there as well, and says that its constraint had not ended it."""
        inner, sink = ScriptedModel(byte_level.encode("one.END two")), Collector()
        held = replace(generate(stop=("END",)), constraint=Constraint("regex", "one.END two"))
        TextModel(inner, byte_level, ScriptedCheck()).submit(held, sink)
        inner.run()
        assert (sink.text(1), sink.of(1)[-1].finish_reason, sink.of(1)[-1].stopped_by) == ("one.", "stop", "END")
        [warning] = sink.of(1)[-1].warnings
        assert warning == "the answer was cut at the stop string 'END', before its constraint had ended it"

    @given(text=st.text("ab🙂 ", max_size=20), stop=st.text("ab🙂 ", min_size=1, max_size=3), step=st.integers(1, 5))
    async def test_text_is_cut_at_the_first_match(
        self, byte_level: TextTokenizer, text: str, stop: str, step: int
    ) -> None:
        """Whatever the tokens, the text is all before the first match, and there is one last output."""
        inner, sink = said(byte_level, text), Collector()
        TextModel(inner, byte_level).submit(generate(stop=(stop,)), sink)
        for _ in range(100):
            inner.step(step)
        assert sink.text(1) == text.partition(stop)[0]
        assert [output.last for output in sink.of(1)].count(True) == 1
        assert sink.of(1)[-1].usage.completion_tokens == len(sink.of(1))


def held(stream_id: StreamId = 1, *, text: bool = True, **sampling: Any) -> GenerateRequest:
    request = generate(stream_id, (5,), text=text, **sampling)
    return replace(request, constraint=Constraint("json_schema", "{}"))


async def settled() -> None:
    """Wait until what is done has been handed on."""
    for _ in range(3):
        await asyncio.sleep(0)


class TestCheckedAnswers:
    """Streams that their constraint has ended."""

    @pytest.mark.parametrize("text", [True, False])
    async def test_valid(self, byte_level: TextTokenizer, text: bool) -> None:
        """The last output comes once the text is found valid, and says what that brought."""
        check = ScriptedCheck()
        inner, sink = said(byte_level, '{"a":"\u00e9"}'), Collector()
        TextModel(inner, byte_level, check).submit(held(text=text, stop=("}}",)), sink)
        inner.run()
        assert check.begun == [('{"a":"\u00e9"}', ())]
        assert not sink.of(1)[-1].last
        check.futures[0].set_result(Verdict(warnings=("not judged",)))
        await settled()
        last = sink.of(1)[-1]
        assert (last.finish_reason, last.warnings, last.token) == ("stop", ("not judged",), END)
        assert last.usage == Usage(1, len(sink.of(1)), 1)
        assert sink.text(1) == ('{"a":"\u00e9"}' if text else "")

    async def test_invalid(self, byte_level: TextTokenizer) -> None:
        """The stream ends with the error in place of `stop`; its neighbour goes on."""
        inner, sink = said(byte_level, "{}"), Collector()
        model = TextModel(inner, byte_level, ScriptedCheck(Verdict(InvalidAnswerError("it is wrong", "report it"))))
        model.submit(held(), sink)
        model.submit(generate(2), sink)
        inner.run()
        await settled()
        last = sink.of(1)[-1]
        assert (last.finish_reason, last.error, last.error_code) == (None, "it is wrong; report it", "invalid_answer")
        assert sink.of(2)[-1].finish_reason == "stop"
        assert not model._channels

    async def test_what_has_not_ended_is_not_judged(self, byte_level: TextTokenizer) -> None:
        """Neither a text that was cut, nor one of another kind; an eos id in `stop_token_ids` cuts nothing."""
        check = ScriptedCheck(Verdict())
        cut, whole, sink = ScriptedModel(byte_level.encode("{}")), said(byte_level, "{}"), Collector()
        TextModel(cut, byte_level, check).submit(held(), sink)
        cut.run()
        TextModel(whole, byte_level, ScriptedCheck(Verdict(), "regex")).submit(held(2), sink)
        TextModel(whole, byte_level, check).submit(held(3, stop=("}",)), sink)
        whole.run()
        assert [sink.of(stream)[-1].finish_reason for stream in (1, 2, 3)] == ["length", "stop", "stop"]
        assert check.begun == []
        TextModel(whole, byte_level, check).submit(held(4, stop_token_ids=(END,)), sink)
        whole.run()
        assert check.begun == [("{}", ())]

    async def test_a_broken_check(self, byte_level: TextTokenizer) -> None:
        """Is an error of the stream, and told to whoever runs the server."""
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        check, inner, sink = ScriptedCheck(), said(byte_level, "{}"), Collector()
        TextModel(inner, byte_level, check).submit(held(), sink)
        inner.run()
        check.futures[0].set_exception(ZeroDivisionError("bug"))
        await settled()
        assert sink.of(1)[-1].error_code == "server"
        assert "bug" in str(told[0]["exception"])

    async def test_cancelled_meanwhile(self, byte_level: TextTokenizer) -> None:
        """A stream that is cancelled while its text is judged ends as cancelled."""
        check, inner, sink = ScriptedCheck(), said(byte_level, "{}"), Collector()
        handle = TextModel(inner, byte_level, check).submit(held(), sink)
        inner.run()
        handle.cancel()
        check.futures[0].set_result(Verdict())
        await settled()
        assert [output.finish_reason for output in sink.of(1) if output.last] == ["cancelled"]

    async def test_drain_waits(self, byte_level: TextTokenizer) -> None:
        """What is being judged still runs; the check ends with its model."""
        check, inner, sink = ScriptedCheck(), said(byte_level, "{}"), Collector()
        model = TextModel(inner, byte_level, check)
        model.submit(held(), sink)
        inner.run()
        assert await model.drain(0.0) == 1
        draining = asyncio.create_task(model.drain(60.0))
        await settled()
        check.futures[0].set_result(Verdict())
        assert await draining == 0
        assert sink.of(1)[-1].finish_reason == "stop"
        model.close()
        assert check.closed
