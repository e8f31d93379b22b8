"""OpenAI's Agents SDK over responses and chat completions. See `questions.py`."""

import asyncio
import json
from functools import partial
from typing import Literal

import questions as q
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    ReasoningItem,
    Runner,
    ToolCallItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning

set_tracing_disabled(True)
SETTINGS = ModelSettings(temperature=0, max_tokens=60)
FORCED = ModelSettings(temperature=0, max_tokens=60, tool_choice="required", parallel_tool_calls=False)
THINKING = ModelSettings(max_tokens=60, reasoning=Reasoning(effort="low"))


@function_tool
def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """Get the current weather in a city."""
    return json.dumps({"city": city, "weather": "sunny"})


def called(result):
    """Name and arguments of a run's only call."""
    [call] = [item.raw_item for item in result.new_items if isinstance(item, ToolCallItem)]
    return [call.name, json.loads(call.arguments)]


def thought(result):
    """The only thought of a run."""
    [item] = [item.raw_item for item in result.new_items if isinstance(item, ReasoningItem)]
    return "".join(part.text for part in item.content or item.summary)


async def streamed(agent, question):
    """The text of the deltas of a run, and the run."""
    run, text = Runner.run_streamed(agent, question), ""
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    return text, run


async def api(model, thinker):
    """All of one API."""
    plain = Agent(name="plain", model=model, model_settings=SETTINGS)
    first = await Runner.run(plain, q.FRANCE)
    second = await Runner.run(plain, [*first.to_input_list(), q.user(q.ITALY)])
    text, _ = await streamed(plain, q.FRANCE)
    tools = Agent(name="tools", model=model, tools=[get_weather], model_settings=FORCED)
    tool = await Runner.run(tools, q.ROME)
    _, tool_run = await streamed(tools, q.ROME)
    form = Agent(name="form", model=model, output_type=q.City, model_settings=SETTINGS)
    _, form_run = await streamed(form, q.FRANCE)
    whole = await Runner.run(form, q.FRANCE)
    return {
        "turns": [first.final_output, second.final_output],
        "stream": text,
        "tool": [*called(tool), tool.final_output],
        "tool_stream": called(tool_run),
        "forms": {"output_type": whole.final_output.model_dump(), "stream": form_run.final_output.model_dump()},
        **await thoughts(thinker),
    }


async def thoughts(thinker):
    """Items of type `reasoning`."""
    agent = Agent(name="thinker", model=thinker, model_settings=THINKING)
    first = await Runner.run(agent, q.THINK)
    again = await Runner.run(agent, [*first.to_input_list(), q.user(q.AGAIN)])
    text, run = await streamed(agent, q.THINK)
    return {
        "thought": [thought(first), first.final_output],
        "thought_stream": [thought(run), text],
        "again": [thought(again), again.final_output],
    }


async def main():
    """Both APIs."""
    plain, thinker = (AsyncOpenAI(base_url=f"{base}/v1", api_key="none") for base in (q.BASE, q.QUOTING))
    chat = partial(OpenAIChatCompletionsModel, should_replay_reasoning_content=lambda _: True)
    return {
        name: await api(made(model=q.MODEL, openai_client=plain), made(model=q.QUOTED, openai_client=thinker))
        for name, made in {"responses": OpenAIResponsesModel, "chat completions": chat}.items()
    }


q.write(["openai-agents"], asyncio.run(main()))
