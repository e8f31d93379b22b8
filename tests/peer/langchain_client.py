"""Run by the Python of an environment with langchain-openai. Argument: URL of `/v1`. Writes what it got as JSON."""

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=6)
    age: int = Field(ge=0, le=99)


@tool
def weather(days: int) -> str:
    """The weather in so many days."""
    return "sunny"


def main(base):
    settings = {"model": "lmtool-tiny", "base_url": base, "api_key": "none", "temperature": 0, "max_retries": 0}
    chat = ChatOpenAI(**settings, max_tokens=60)
    call = chat.bind_tools([weather], tool_choice="weather").invoke("How is the weather?")
    said = [HumanMessage("How is the weather?"), call, ToolMessage("sunny", tool_call_id=call.tool_calls[0]["id"])]
    found = {
        "invoke": chat.invoke(QUESTION).content,
        "stream": "".join(str(chunk.content) for chunk in chat.stream(QUESTION)),
        "batch": [answer.content for answer in chat.batch([QUESTION, "Who are you?"])],
        "usage": chat.invoke(QUESTION).usage_metadata["output_tokens"],
        "json_schema": chat.with_structured_output(Person, method="json_schema").invoke("Who?").model_dump(),
        "function_calling": chat.with_structured_output(Person, method="function_calling").invoke("Who?").model_dump(),
        "call": [call.tool_calls[0]["name"], call.tool_calls[0]["args"]],
        "after": chat.bind_tools([weather]).invoke(said).content,
        "completion": OpenAI(**settings, max_tokens=8).invoke("Once upon a time"),
        "responses": ChatOpenAI(**settings, use_responses_api=True).invoke(QUESTION).content[0]["text"],
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


main(*sys.argv[1:])
