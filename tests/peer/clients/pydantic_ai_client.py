"""Pydantic AI: agents over chat completions, responses and messages. See `questions.py`."""

import asyncio
from typing import Literal

import questions as q
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ThinkingPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS = {"temperature": 0, "max_tokens": 60}


def with_weather(model, **more):
    """An agent with a tool."""
    agent = Agent(model, **more)

    @agent.tool_plain
    def get_weather(city: Literal["Rome", "Oslo"]) -> str:
        """Get the current weather in a city."""
        return f"{city}: sunny"

    return agent


def parts(result, kind):
    """The parts of this kind in all answers of a run."""
    return [part for message in result.new_messages() for part in message.parts if isinstance(part, kind)]


async def streamed(agent, question, settings):
    """The text of a stream, and the run."""
    async with agent.run_stream(question, model_settings=settings) as run:
        texts = [text async for text in run.stream_text(delta=True)]
        return "".join(texts), run


async def api(model, thinker, thinking):
    """All of one API. thinking: the settings that ask for a thought."""
    plain, tools = Agent(model), with_weather(model)
    first = await plain.run(q.FRANCE, model_settings=SETTINGS)
    second = await plain.run(q.ITALY, message_history=first.all_messages(), model_settings=SETTINGS)
    text, _ = await streamed(plain, q.FRANCE, SETTINGS)
    asked = await with_weather(thinker).run(q.CALL, model_settings={"max_tokens": 60})
    [call] = parts(asked, ToolCallPart)
    stream_text, stream_run = await streamed(with_weather(thinker), q.CALL, {"max_tokens": 60})
    assert stream_text == asked.output
    [stream_call] = parts(stream_run, ToolCallPart)
    assert (await tools.run(q.ROME, model_settings=SETTINGS)).output
    return {
        "turns": [first.output, second.output],
        "stream": text,
        "tool": [call.tool_name, call.args_as_dict(), asked.output],
        "tool_stream": [stream_call.tool_name, stream_call.args_as_dict()],
        "forms": await forms(model, thinker),
        **await thoughts(thinker, thinking),
    }


async def forms(model, thinker):
    """Each way to have an object."""
    native = await Agent(model, output_type=NativeOutput(q.City)).run(q.FRANCE, model_settings=SETTINGS)
    tool = await Agent(model, output_type=ToolOutput(q.City)).run(q.FRANCE, model_settings=SETTINGS)
    prompted = await Agent(thinker, output_type=PromptedOutput(q.City)).run(q.FORM, model_settings={"max_tokens": 60})
    async with Agent(model, output_type=NativeOutput(q.City)).run_stream(q.FRANCE, model_settings=SETTINGS) as run:
        stream = await run.get_output()
    found = {"native": native.output, "tool": tool.output, "prompted": prompted.output, "stream": stream}
    return {name: city.model_dump() for name, city in found.items()}


async def thoughts(thinker, thinking):
    """Parts of the kind `ThinkingPart`."""
    settings = {"max_tokens": 60, **thinking}
    agent = Agent(thinker)
    first = await agent.run(q.THINK, model_settings=settings)
    again = await agent.run(q.AGAIN, message_history=first.all_messages(), model_settings=settings)
    text, run = await streamed(agent, q.THINK, settings)
    form = await Agent(thinker, output_type=NativeOutput(q.City)).run(q.THINK, model_settings=settings)
    assert thought_of(form) == "Hm, hm."
    return {
        "thought": [thought_of(first), first.output],
        "thought_stream": [thought_of(run), text],
        "again": [thought_of(again), again.output],
    }


def thought_of(result):
    """The only thought of a run: the part's content, or the text of a responses item, which has no summary here."""
    [part] = parts(result, ThinkingPart)
    return part.content or "".join(part.provider_details["raw_content"])


async def main():
    """All APIs."""
    openai = [OpenAIProvider(base_url=f"{base}/v1", api_key="none") for base in (q.BASE, q.QUOTING)]
    anthropic = [AnthropicProvider(base_url=base, api_key="none") for base in (q.BASE, q.QUOTING)]
    apis = {}
    for name, made, thinking in (
        ("chat completions", OpenAIChatModel, {"openai_reasoning_effort": "low"}),
        ("responses", OpenAIResponsesModel, {"openai_reasoning_effort": "low"}),
        ("messages", AnthropicModel, {"anthropic_thinking": {"type": "enabled", "budget_tokens": 40}}),
    ):
        plain, quoting = anthropic if made is AnthropicModel else openai
        models = (q.CLAUDE, q.CLAUDE) if made is AnthropicModel else (q.MODEL, q.QUOTED)
        apis[name] = await api(made(models[0], provider=plain), made(models[1], provider=quoting), thinking)
    return apis


q.write(["pydantic-ai-slim"], asyncio.run(main()))
