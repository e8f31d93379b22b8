"""A request's streams: what is sent to the model, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, TokenOutput
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.generation import TOOLS_NOT_SHOWN, Generation
from lmtool.protocol.http.models import ApiConfig, Served
from lmtool.protocol.http.openai.requests import chat, completion
from tests.protocol.http.saying import EOS, Letters, SayingModel

HELLO = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


async def generation(model: SayingModel, body: dict[str, Any], **config: Any) -> Generation:
    read = chat if "messages" in body else completion
    made = Generation(Served(model, await model.info(), model.tokenizer(), ApiConfig(**config)), read(body))
    await made.start()
    return made


async def test_the_conversation_goes_as_it_is() -> None:
    """Whoever computes it applies the template: messages, tools, the template's variables, the answer's beginning."""
    model = SayingModel(CALL)
    made = await generation(model, {"messages": HELLO, "tools": TOOLS, "chat_template_kwargs": {"suffix": "!"}})
    await made.finish()
    (request,) = model.requests
    assert request.prompt == ChatPrompt((ChatMessage("user", "Hi"),), tuple(TOOLS), {"suffix": "!"})
    assert [(call.name, call.arguments) for call in made.answers[0].calls] == [("f", '{"a": 1}')]
    assert made.answers[0].finish_reason == "tool_calls"
    silent = await generation(model, {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"})
    assert silent.prompts == (ChatPrompt((ChatMessage("user", "Hi"),)),)
    await silent.finish()
    assert silent.answers[0].finish_reason == "stop"


async def test_prompts_that_must_be_counted() -> None:
    """They are ids already, where the tokenizer is here; else their number is known at the end."""
    for here in (True, False):
        made = await generation(SayingModel("", tokenizer=here), {"messages": HELLO})
        await made.start(count=True)
        assert made.prompt_tokens == (len("user: Hiassistant:") if here else 0)
        await made.finish()
        assert made.used.prompt_tokens == len("user: Hiassistant:")


async def test_tools_without_a_tokenizer_here() -> None:
    """The model's own process renders them; only what needs single tokens' texts is refused."""
    model = SayingModel('{"a": 1}', tokenizer=False)
    made = await generation(model, {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"})
    assert made.prompts == (ChatPrompt((ChatMessage("user", "Hi"),), tuple(TOOLS)),)
    assert not made.served.ignores_tools
    with pytest.raises(ApiError, match="no tokenizer here"):
        await generation(model, {"messages": HELLO, "logprobs": True})


async def test_a_template_without_tools() -> None:
    """The answer is text, and says why."""
    model = SayingModel("Hello.", letters=Letters("{{ messages[0].content }}"))
    made = await generation(model, {"messages": HELLO, "tools": TOOLS})
    await made.finish()
    assert (made.answers[0].text, made.answers[0].warnings) == ("Hello.", (TOOLS_NOT_SHOWN,))
    bare = await generation(model, {"messages": HELLO})
    await bare.finish()
    assert bare.answers[0].warnings == ()


async def test_strict_tools_are_held_where_text_is_free() -> None:
    """Also beside stop strings, and where the mark is a special token, which stands for itself."""

    def spelled() -> SayingModel:
        return SayingModel(CALL, letters=Letters(special={}))

    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]  # type: ignore[dict-item]
    body = {"messages": HELLO, "tools": strict}
    held = await generation(spelled(), body)
    assert held.constraint is not None
    assert held.constraint.kind == "structural_tag"
    marked = await generation(SayingModel(CALL), body)
    assert marked.constraint is not None
    assert '{"type":"token","token":500}' in marked.constraint.text
    assert (await generation(spelled(), {**body, "stop": "x"})).constraint == held.constraint
    assert (await generation(spelled(), {"messages": HELLO, "tools": TOOLS})).constraint is None


async def test_a_form_beside_tools() -> None:
    """The answer is in the form, or a call behind the model's mark, here a special token; a call that must be wins."""
    body = {"messages": HELLO, "tools": TOOLS, "response_format": {"type": "json_object"}}
    made = await generation(SayingModel(CALL), body)
    await made.finish()
    held = made.constraint
    assert held is not None
    assert held.kind == "structural_tag"
    assert '{"type":"token","token":500}' in held.text
    assert [call.arguments for call in made.answers[0].calls] == ['{"a": 1}']
    forced = await generation(SayingModel('{"a": 1}'), {**body, "tool_choice": "required"})
    assert forced.constraint is not None
    assert '"minItems":1' in forced.constraint.text
    silent = await generation(SayingModel("{}"), {**body, "tool_choice": "none"})
    assert silent.constraint == silent.call.constraint


async def test_the_form_can_be_named() -> None:
    """`--tool-call-parser` counts more than the template."""
    body = {"messages": HELLO, "tools": TOOLS}
    made = await generation(SayingModel('{"name": "f", "parameters": {}}'), body, tool_call_parser="llama3_json")
    await made.finish()
    assert made.answers[0].calls[0].name == "f"


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

    made = await generation(Ranked("a", "b", "c"), {"prompt": "x", "n": 2, "best_of": 3})
    await made.finish()
    assert [(answer.index, answer.text) for answer in made.answers] == [(0, "c"), (1, "b")]
    assert made.used.completion_tokens == 6


async def test_what_does_not_hold_is_told() -> None:
    """What the model says of an answer's end is told with it."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    body = {"messages": HELLO, "response_format": form}
    made = await generation(SayingModel("{}", warnings=("w",)), body)
    await made.finish()
    assert made.answers[0].warnings == ("w",)


async def test_seed_priority_and_prefill_reach_the_model() -> None:
    """Each answer has its seed."""
    model = SayingModel("a")
    body = {"prompt": "x", "n": 2, "seed": 4, "priority": -3}
    made = await generation(model, body)
    await made.finish()
    sent = [request for request in model.requests if isinstance(request, GenerateRequest)]
    assert [(request.sampling.seed, request.priority) for request in sent] == [(4, -3), (5, -3)]
    assert made.answers[0].outputs[-1].token == EOS


async def test_each_stream_is_counted_once() -> None:
    """With its last output, or with none where nobody waited for it."""
    counted: list[tuple[str | None, int]] = []

    def count(last: TokenOutput | None, tokens: int) -> None:
        counted.append((None if last is None else last.finish_reason, tokens))

    made = await generation(SayingModel("abc"), {"prompt": "x", "n": 2}, on_stream_end=count)
    await made.finish()
    assert counted == [("stop", 4), ("stop", 4)]
    left = await generation(SayingModel("abc"), {"prompt": "x"}, on_stream_end=count)
    steps = left.steps()
    for output in await anext(steps):
        left.add(output)
    await steps.aclose()
    assert counted[2:] == [(None, 1)]


async def test_a_stream_that_fails_ends_all() -> None:
    """The others are cancelled."""
    model = SayingModel("a" * 50, fails_after=3)
    made = await generation(model, {"prompt": "x", "n": 3})
    with pytest.raises(ApiError, match="it broke"):
        await made.finish()
