"""What litellm gets of our server, by its providers of OpenAI and Anthropic, as a line of JSON. Argument: the URL."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is downloaded

import litellm
from pydantic import BaseModel

BASE = sys.argv[1]
OPENAI = {"model": "openai/lmtool-tiny", "api_base": f"{BASE}/v1", "api_key": "none", "temperature": 0}
ANTHROPIC = {"model": "anthropic/lmtool-tiny", "api_base": BASE, "api_key": "none", "temperature": 0, "max_tokens": 40}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
AGAIN = {"role": "user", "content": "What is the capital of Italy?"}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY},
}


class Person(BaseModel):
    """A form."""

    name: str
    age: int


def two_turns(where):
    """An answer, which goes back as litellm has it, and another one."""
    first = litellm.completion(messages=FRANCE, **where).choices[0].message
    second = litellm.completion(messages=[*FRANCE, first.model_dump(), AGAIN], **where).choices[0].message
    again = litellm.completion(messages=[*FRANCE, first, AGAIN], **where).choices[0].message
    assert again.content == second.content
    return [first.content, second.content]


def streamed(where):
    """The text of a stream, and its usage."""
    chunks = list(litellm.completion(messages=FRANCE, stream=True, stream_options={"include_usage": True}, **where))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return [text, chunks[-1].usage.completion_tokens]


def tools(where):
    """A call, and the answer to its result."""
    turns = [{"role": "user", "content": "What is the weather like in Rome?"}]
    choice = litellm.completion(messages=turns, tools=[WEATHER], tool_choice="required", **where).choices[0]
    [call, *_] = choice.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"city": "Rome", "weather": "snowy"}'}
    message = choice.message.model_dump()
    message["tool_calls"] = message["tool_calls"][:1]
    after = litellm.completion(messages=[*turns, message, result], tools=[WEATHER], **where)
    return [call.function.name, json.loads(call.function.arguments), after.choices[0].message.content]


def form(where):
    """An object of a class; the age may have been cut."""
    ask = {**where, "max_tokens": 200}
    answer = litellm.completion(messages=FRANCE, response_format=Person, **ask).choices[0]
    return [sorted(json.loads(answer.message.content)), answer.finish_reason] if answer.finish_reason == "stop" else []


found = {}
for name, where in {"openai": OPENAI, "anthropic": ANTHROPIC}.items():
    found[name] = {part.__name__: part(where) for part in (two_turns, streamed, tools, form)}
choice = litellm.completion(messages=FRANCE, **OPENAI, extra_body={"return_token_ids": True}).choices[0]
found["ids"] = choice.provider_specific_fields["token_ids"]
sys.stdout.write(json.dumps(found) + "\n")
