"""Run by the Python of an environment with Anthropic's SDK. Arguments: URL, key. Writes what it got as JSON."""

import json
import sys

import anthropic

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
}


def main(base, key="none"):
    client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0)
    ask = {"model": "lmtool-tiny", "max_tokens": 60, "messages": QUESTION, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**ask)
    cut = client.messages.create(**ask, stop_sequences=["France"], system="Answer.")
    with client.messages.stream(**ask) as stream:
        streamed = "".join(stream.text_stream)
    with client.messages.stream(
        **ask, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True}
    ) as stream:
        called = stream.get_final_message()
    result = [{"type": "tool_result", "tool_use_id": called.content[0].id, "content": "sunny"}]
    turns = [*QUESTION, {"role": "assistant", "content": called.content}, {"role": "user", "content": result}]
    after = client.messages.create(**{**ask, "messages": turns}, tools=[WEATHER])
    refused = []
    for more in ({"model": "other"}, {"max_tokens": 0}):
        try:
            client.messages.create(**{**ask, **more})
        except anthropic.APIStatusError as error:
            refused.append(type(error).__name__)
    found = {
        "whole": [whole.content[0].text, whole.stop_reason, whole.usage.output_tokens],
        "cut": [cut.content[0].text, cut.stop_reason, cut.stop_sequence],
        "streamed": streamed,
        "call": [called.content[0].name, called.content[0].input, called.stop_reason],
        "after": after.content[0].type,
        "counted": client.messages.count_tokens(model="lmtool-tiny", messages=QUESTION).input_tokens,
        "refused": refused,
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


main(*sys.argv[1:])
