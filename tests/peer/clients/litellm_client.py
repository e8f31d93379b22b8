"""litellm, by its providers of OpenAI and Anthropic, and its `responses`. See `questions.py`."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is downloaded

import litellm
import questions as q

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": q.DESCRIPTION, "parameters": q.PARAMETERS},
}
FORCED = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


def where(provider, base, model):
    """What every call says."""
    end = "/v1" if provider == "openai" else ""
    return {
        "model": f"{provider}/{model}", "api_base": base + end, "api_key": "none", "temperature": 0, "max_tokens": 60,
    }  # fmt: skip


def message(**ask):
    """The message of an answer."""
    return litellm.completion(**ask).choices[0].message


def streamed(messages, **ask):
    """The message that the chunks of a stream make."""
    chunks = list(litellm.completion(messages=messages, stream=True, stream_options={"include_usage": True}, **ask))
    built = litellm.stream_chunk_builder(chunks, messages=messages)
    assert built.usage.completion_tokens > 0
    return built.choices[0].message


def called(answer):
    """Name and arguments of a message's first call."""
    function = answer.tool_calls[0].function
    return [function.name, json.loads(function.arguments)]


def chat(provider):
    """Two turns, a stream, calls, forms."""
    ask = where(provider, q.BASE, q.MODEL)
    first = message(messages=[q.user(q.FRANCE)], **ask)
    second = message(messages=[q.user(q.FRANCE), first.model_dump(), q.user(q.ITALY)], **ask)
    again = message(messages=[q.user(q.FRANCE), first, q.user(q.ITALY)], **ask)
    assert again.content == second.content
    call = message(messages=[q.user(q.ROME)], **ask, **FORCED)
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": q.SUNNY}
    after = message(messages=[q.user(q.ROME), call.model_dump(), result], tools=[TOOL], **ask)
    form = message(messages=[q.user(q.FRANCE)], response_format=q.City, **ask)
    return {
        "turns": [first.content, second.content],
        "stream": streamed([q.user(q.FRANCE)], **ask).content,
        "tool": [*called(call), after.content],
        "tool_stream": called(streamed([q.user(q.ROME)], **ask, **FORCED)),
        "forms": {
            "response_format": json.loads(form.content),
            "stream": json.loads(streamed([q.user(q.FRANCE)], response_format=q.City, **ask).content),
        },
        **thoughts(provider),
    }


def thoughts(provider):
    """`reasoning_content`, of both."""
    effort = {"reasoning_effort": "low", "allowed_openai_params": ["reasoning_effort"]}
    asked = effort if provider == "openai" else {"thinking": {"type": "enabled", "budget_tokens": 40}}
    ask = where(provider, q.QUOTING, q.QUOTED if provider == "openai" else q.CLAUDE) | asked
    first = message(messages=[q.user(q.THINK)], **ask)
    again = message(messages=[q.user(q.THINK), first.model_dump(), q.user(q.AGAIN)], **ask)
    stream = streamed([q.user(q.THINK)], **ask)
    call = message(messages=[q.user(q.THINK)], **ask, **FORCED)
    return {
        "thought": [first.reasoning_content, first.content],
        "thought_stream": [stream.reasoning_content, stream.content],
        "again": [again.reasoning_content, again.content],
        "thought_tool": [call.reasoning_content, called(call)[1]],
    }


ids = litellm.completion(
    messages=[q.user(q.FRANCE)], **where("openai", q.BASE, q.MODEL), extra_body={"return_token_ids": True}
).choices[0]
response = litellm.responses(input=q.FRANCE, model=f"openai/{q.MODEL}", api_base=f"{q.BASE}/v1", api_key="none")
q.write(
    ["litellm"],
    {"openai": chat("openai"), "anthropic": chat("anthropic")},
    ids=len(ids.provider_specific_fields["token_ids"]),
    responses=response.output[0].content[0].text,
)
