"""LangChain: `ChatOpenAI` by chat completions and by responses, `ChatAnthropic`. See `questions.py`."""

import questions as q
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

COMMON = {"api_key": "none", "max_retries": 0, "max_tokens": 60}


@tool("get_weather", args_schema=q.GetWeather)
def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    return f"{city}: sunny"


def joined(chunks):
    """The message that chunks add up to."""
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


def called(message):
    """Name and arguments of a message's only call."""
    [call] = message.tool_calls
    return [call["name"], call["args"]]


def chat(model, thinker, methods):
    """Two turns, a stream, calls, forms."""
    first = model.invoke(q.FRANCE)
    second = model.invoke([HumanMessage(q.FRANCE), first, HumanMessage(q.ITALY)])
    forced = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    call = forced.invoke(q.ROME)
    result = ToolMessage(q.SUNNY, tool_call_id=call.tool_calls[0]["id"])
    after = model.bind_tools([get_weather]).invoke([HumanMessage(q.ROME), call, result])
    assert [answer.text for answer in model.batch([q.FRANCE, q.ITALY])] == [first.text, second.text]
    assert first.usage_metadata["output_tokens"] > 5
    return {
        "turns": [first.text, second.text],
        "stream": joined(model.stream(q.FRANCE)).text,
        "tool": [*called(call), after.text],
        "tool_stream": called(joined(forced.stream(q.ROME))),
        "forms": {
            method: model.with_structured_output(q.City, method=method).invoke(q.FRANCE).model_dump()
            for method in methods
        },
        **thoughts(thinker),
    }


def thoughts(thinker):
    """Blocks of type `reasoning`, as LangChain makes them of each API."""
    first = thinker.invoke(q.THINK)
    call = thinker.bind_tools([get_weather]).invoke(q.THINK_CALL)
    return {
        "thought": [thought(first), first.text],
        "thought_stream": parts(joined(thinker.stream(q.THINK))),
        "again": parts(thinker.invoke([HumanMessage(q.THINK), first, HumanMessage(q.AGAIN)])),
        "thought_tool": [thought(call), call.tool_calls[0]["args"]],
    }


def thought(message):
    """The thought of a message: `reasoning` of its blocks, or text of a responses item, which those leave out."""
    found = [block for block in message.content_blocks if block["type"] == "reasoning"]
    items = [block for block in message.content if isinstance(block, dict) and block["type"] == "reasoning"]
    texts = [part["text"] for item in items for part in item.get("content", ())]
    return "".join(texts or [block.get("reasoning", "") for block in found])


def parts(message):
    """Thought and answer."""
    return [thought(message), message.text]


def of_openai(**more):
    """`ChatOpenAI` for both servers."""
    sides = {q.BASE: (q.MODEL, {"temperature": 0}), q.QUOTING: (q.QUOTED, {"reasoning_effort": "low"})}
    return [
        ChatOpenAI(model=model, base_url=f"{base}/v1", **COMMON, **own, **more) for base, (model, own) in sides.items()
    ]


anthropic = [
    ChatAnthropic(model=q.MODEL, base_url=q.BASE, temperature=0, **COMMON),
    ChatAnthropic(model=q.QUOTED, base_url=q.QUOTING, thinking={"type": "enabled", "budget_tokens": 40}, **COMMON),
]
METHODS = ["json_schema", "function_calling"]
q.write(
    ["langchain-openai", "langchain-anthropic"],
    {
        "ChatOpenAI": chat(*of_openai(), METHODS),
        "ChatOpenAI, responses": chat(*of_openai(use_responses_api=True, output_version="responses/v1"), METHODS),
        "ChatAnthropic": chat(*anthropic, METHODS),
    },
    completion=OpenAI(model=q.MODEL, base_url=f"{q.BASE}/v1", api_key="none", max_tokens=8, temperature=0).invoke(
        "The capital of France is"
    ),
)
