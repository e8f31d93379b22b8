"""A request's streams: what is sent to the model, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.errors import RequestError
from lmtool.http_api.errors import ApiError
from lmtool.http_api.generation import NO_TEMPLATE, Generation, Served, form_named
from lmtool.http_api.requests import chat, completion
from lmtool.types import ChatMessage, GenerateRequest, TokenOutput
from tests.http_api.saying import EOS, Letters, SayingModel

HELLO = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


async def generation(model: SayingModel, letters: Letters | None, body: dict[str, Any], **more: Any) -> Generation:
    read = chat if "messages" in body else completion
    made = Generation(Served(model, await model.info(), letters, **more), read(body))
    await made.start()
    return made


async def test_plain_messages_go_as_they_are() -> None:
    """Whoever computes them knows the template."""
    model = SayingModel("Hello.")
    made = await generation(model, Letters(), {"messages": HELLO})
    await made.finish()
    (request,) = model.requests
    assert request.prompt == (ChatMessage("user", "Hi"),)
    assert made.answers[0].text == "Hello."


async def test_tools_are_told_by_the_template() -> None:
    """Then the prompt is ids; under `none` nobody tells of them."""
    model = SayingModel(CALL)
    made = await generation(model, Letters(), {"messages": HELLO, "tools": TOOLS})
    await made.finish()
    text = bytes(model.requests[0].prompt).decode()  # type: ignore[arg-type]
    assert text.startswith('tools:[{"type": "function", "function": {"name": "f"')
    assert [(call.name, call.arguments) for call in made.answers[0].calls] == [("f", '{"a": 1}')]
    assert made.answers[0].finish_reason == "tool_calls"
    silent = await generation(model, Letters(), {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"})
    assert silent.prompts == ((ChatMessage("user", "Hi"),),)
    await silent.finish()
    assert silent.answers[0].finish_reason == "stop"


async def test_what_tools_answered_goes_into_the_template() -> None:
    """Calls with their arguments as objects, results with the call they answer; never without a template."""
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [{"id": "7", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "7", "content": "sunny"},
    ]
    made = await generation(SayingModel(""), Letters(), {"messages": messages})
    assert bytes(made.prompts[0]).decode().endswith('calls f with {"a": 1}tool: sunny for 7assistant:')  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="no tokenizer here"):
        await generation(SayingModel(""), None, {"messages": messages})


async def test_what_the_template_is_told_beside() -> None:
    """`chat_template_kwargs` reach it, and cannot replace messages."""
    body = {"messages": HELLO, "chat_template_kwargs": {"suffix": "!", "messages": []}}
    made = await generation(SayingModel(""), Letters(), body)
    assert bytes(made.prompts[0]).decode() == "user: Hiassistant:!"  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        await generation(SayingModel(""), Letters("{{ raise_exception('no') }}"), body)


async def test_a_template_without_tools() -> None:
    """The answer is text, and says why."""
    made = await generation(
        SayingModel("Hello."), Letters("{{ messages[0].content }}"), {"messages": HELLO, "tools": TOOLS}
    )
    await made.finish()
    assert (made.answers[0].text, made.answers[0].warnings) == ("Hello.", (NO_TEMPLATE,))


async def test_strict_tools_are_held_where_text_is_free() -> None:
    """Also beside stop strings; unless the mark is a special token, which no text can be held to."""

    class Spelled(Letters):
        def special_id(self, text: str) -> int | None:
            return None

    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]  # type: ignore[dict-item]
    body = {"messages": HELLO, "tools": strict}
    held = await generation(SayingModel(CALL), Spelled(), body)
    assert held.constraint is not None
    assert held.constraint.kind == "structural_tag"
    assert (await generation(SayingModel(CALL), Letters(), body)).constraint is None
    assert (await generation(SayingModel(CALL), Spelled(), {**body, "stop": "x"})).constraint == held.constraint
    assert (await generation(SayingModel(CALL), Spelled(), {"messages": HELLO, "tools": TOOLS})).constraint is None


async def test_a_form_beside_tools() -> None:
    """The answer is in the form, or a call behind the model's mark, here a special token; a call that must be wins."""
    body = {"messages": HELLO, "tools": TOOLS, "response_format": {"type": "json_object"}}
    made = await generation(SayingModel(CALL), Letters(), body)
    await made.finish()
    held = made.constraint
    assert held is not None
    assert held.kind == "structural_tag"
    assert '{"type":"token","token":500}' in held.text
    assert [call.arguments for call in made.answers[0].calls] == ['{"a": 1}']
    forced = await generation(SayingModel('{"a": 1}'), Letters(), {**body, "tool_choice": "required"})
    assert forced.constraint is not None
    assert '"minItems":1' in forced.constraint.text
    silent = await generation(SayingModel("{}"), Letters(), {**body, "tool_choice": "none"})
    assert silent.constraint == silent.call.constraint


async def test_the_form_can_be_named() -> None:
    """`--tool-call-parser` counts more than the template."""
    body = {"messages": HELLO, "tools": TOOLS}
    made = await generation(
        SayingModel('{"name": "f", "parameters": {}}'), Letters(), body, form=form_named("llama3_json")
    )
    await made.finish()
    assert made.answers[0].calls[0].name == "f"
    assert form_named(None) is None


async def test_the_best_of_several() -> None:
    """Mean logprob decides; all tokens count."""

    class Ranked(SayingModel):
        def submit(self, request: Any, sink: Any) -> Any:
            handle = super().submit(request, sink)
            index = request.stream_id
            handle._left = [
                type(one)(one.stream_id, one.token, -1.0 / (index + 1), None, one.text, one.finish_reason, one.usage)
                for one in handle._left
            ]
            return handle

    made = await generation(Ranked("a", "b", "c"), Letters(), {"prompt": "x", "n": 2, "best_of": 3})
    await made.finish()
    assert [(answer.index, answer.text) for answer in made.answers] == [(0, "c"), (1, "b")]
    assert made.used.completion_tokens == 6


async def test_what_does_not_hold_is_told() -> None:
    """What the model says of an answer's end is told with it."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    body = {"messages": HELLO, "response_format": form}
    made = await generation(SayingModel("{}", warnings=("w",)), Letters(), body)
    await made.finish()
    assert made.answers[0].warnings == ("w",)


async def test_seed_priority_and_prefill_reach_the_model() -> None:
    """Each answer has its seed."""
    model = SayingModel("a")
    body = {"prompt": "x", "n": 2, "seed": 4, "priority": -3}
    made = await generation(model, Letters(), body)
    await made.finish()
    sent = [request for request in model.requests if isinstance(request, GenerateRequest)]
    assert [(request.sampling.seed, request.priority) for request in sent] == [(4, -3), (5, -3)]
    assert made.answers[0].outputs[-1].token == EOS


async def test_each_stream_is_counted_once() -> None:
    """With its last output, or with none where nobody waited for it."""
    counted: list[tuple[str | None, int]] = []

    def count(last: TokenOutput | None, tokens: int) -> None:
        counted.append((None if last is None else last.finish_reason, tokens))

    made = await generation(SayingModel("abc"), Letters(), {"prompt": "x", "n": 2}, counted=count)
    await made.finish()
    assert counted == [("stop", 4), ("stop", 4)]
    left = await generation(SayingModel("abc"), Letters(), {"prompt": "x"}, counted=count)
    deltas = left.deltas()
    await anext(deltas)
    await deltas.aclose()
    assert counted[2:] == [(None, 1)]


async def test_a_stream_that_fails_ends_all() -> None:
    """The others are cancelled."""
    model = SayingModel("a" * 50, fails_after=3)
    made = await generation(model, Letters(), {"prompt": "x", "n": 3})
    with pytest.raises(ApiError, match="it broke"):
        await made.finish()
