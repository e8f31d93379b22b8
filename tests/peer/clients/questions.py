"""What each client of this folder asks, and the line of JSON that it writes.

A client is run by the Python of an environment with its SDK. Arguments: the URL of a server with the embedded model,
and that of `quoting_server.py`. It writes its versions, and of each API (by an SDK's own name for it):

turns          two answers, the first of which went back as the SDK has it
stream         the first of them, streamed
tool           name and arguments of a call, and the text after its result
tool_stream    name and arguments of a streamed call
forms          by way of asking: an object of the class `City`
thought        a thought and the answer behind it
thought_stream the same, streamed
again          the same once more, after the turn went back as the SDK has it: the thought is the one that was sent
thought_tool   a thought, and the arguments of the call behind it

What an SDK cannot do is left out. More that is its own goes below `more`.
"""

import importlib.metadata
import json
import sys
from typing import Literal

from pydantic import BaseModel

BASE, QUOTING = sys.argv[1:3]
MODEL, QUOTED = "lmtool-tiny", "scripted"
CLAUDE = "claude-sonnet-4-5"
"""One more name of both, where an SDK knows its models by name."""
FRANCE, ITALY = "What is the capital of France?", "What is the capital of Italy?"
ROME = "What is the weather like in Rome?"
SUNNY = '{"city": "Rome", "weather": "sunny"}'
THINK = "Say «<think>\nHm, hm.\n</think>\n\nYes.»"
AGAIN = "Again."
FORM = 'Say «{"name":"Rome","size":3}»'
FORM_CALL = 'Say «<tool_call>\n{"name": "City", "arguments": {"name": "Rome", "size": 3}}\n</tool_call>»'
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CALL = f"Say «{CALLED}»"
THINK_CALL = f"Say «<think>\nHm, hm.\n</think>\n\n{CALLED}»"


class City(BaseModel):
    """A city."""

    name: Literal["Rome", "Oslo"]
    size: Literal[1, 2, 3]


class GetWeather(BaseModel):
    """Get the current weather in a city."""

    city: Literal["Rome", "Oslo"]


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
DESCRIPTION = "Get the current weather in a city."


def user(text):
    """A message."""
    return {"role": "user", "content": text}


def write(packages, apis, **more):
    """Write the report."""
    versions = {package: importlib.metadata.version(package) for package in packages}
    sys.stdout.write("\n" + json.dumps({"versions": versions, "apis": apis, "more": more}) + "\n")
