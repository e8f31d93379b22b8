"""Anthropic's SDK: messages, counting, the classes of its errors. See `questions.py`. Key: `ANTHROPIC_API_KEY`."""

import anthropic
import questions as q

client = anthropic.Anthropic(base_url=q.BASE, max_retries=0)
thinker = anthropic.Anthropic(base_url=q.QUOTING, max_retries=0)
ASK = {"model": q.MODEL, "max_tokens": 60, "extra_body": {"temperature": 0}}
FORCED = {
    "tools": [{"name": "get_weather", "description": q.DESCRIPTION, "input_schema": q.PARAMETERS}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}


def assistant(message):
    """An answer as a turn."""
    return {"role": "assistant", "content": message.content}


def last_of(manager):
    """The message that a stream ends with; its texts and thoughts add up to it."""
    with manager as stream:
        events = list(stream)
        message = stream.get_final_message()
    for kind in ("text", "thinking"):
        parts = "".join(getattr(block, kind) for block in message.content if block.type == kind)
        assert parts == "".join(getattr(event, kind) for event in events if event.type == kind)
    return message


def called(message):
    """Name and arguments of the last block, a call."""
    call = message.content[-1]
    return [call.name, call.input]


def messages():
    """Two turns, a stream, calls, forms."""
    create = client.messages.create
    first = create(messages=[q.user(q.FRANCE)], **ASK)
    second = create(messages=[q.user(q.FRANCE), assistant(first), q.user(q.ITALY)], **ASK)
    call = create(messages=[q.user(q.ROME)], **ASK, **FORCED)
    result = {"type": "tool_result", "tool_use_id": call.content[0].id, "content": q.SUNNY}
    after = create(messages=[q.user(q.ROME), assistant(call), q.user([result])], tools=FORCED["tools"], **ASK)
    form = client.messages.parse(messages=[q.user(q.FRANCE)], output_format=q.City, **ASK)
    with client.messages.stream(messages=[q.user(q.FRANCE)], output_format=q.City, **ASK) as stream:
        form_stream = stream.get_final_message()
    return {
        "turns": [first.content[0].text, second.content[0].text],
        "stream": last_of(client.messages.stream(messages=[q.user(q.FRANCE)], **ASK)).content[0].text,
        "tool": [*called(call), after.content[0].text],
        "tool_stream": called(last_of(client.messages.stream(messages=[q.user(q.ROME)], **ASK, **FORCED))),
        "forms": {"parse": form.parsed_output.model_dump(), "stream": form_stream.parsed_output.model_dump()},
        **thoughts(),
    }


def thoughts():
    """Blocks of type `thinking`, which go back."""
    ask = {**ASK, "model": q.QUOTED, "thinking": {"type": "enabled", "budget_tokens": 40}}
    first = thinker.messages.create(messages=[q.user(q.THINK)], **ask)
    again = thinker.messages.create(messages=[q.user(q.THINK), assistant(first), q.user(q.AGAIN)], **ask)
    streamed = last_of(thinker.messages.stream(messages=[q.user(q.THINK)], **ask))
    call = thinker.messages.create(messages=[q.user(q.THINK)], **ask, **FORCED)
    result = {"type": "tool_result", "tool_use_id": call.content[-1].id, "content": q.SUNNY}
    after = thinker.messages.create(
        messages=[q.user(q.THINK), assistant(call), q.user([result])], **ask, tools=FORCED["tools"]
    )
    assert after.content[0].text == f"It is {q.SUNNY}"
    return {
        "thought": [block.thinking if block.type == "thinking" else block.text for block in first.content],
        "thought_stream": [block.thinking if block.type == "thinking" else block.text for block in streamed.content],
        "again": [block.thinking if block.type == "thinking" else block.text for block in again.content],
        "thought_tool": [call.content[0].thinking, call.content[1].input],
    }


def refusals():
    """The classes of errors."""
    for more in ({"model": "other"}, {"max_tokens": 0}):
        try:
            client.messages.create(messages=[q.user(q.FRANCE)], **{**ASK, **more})
        except anthropic.APIStatusError as error:
            yield type(error).__name__


cut = client.messages.create(messages=[q.user(q.FRANCE)], stop_sequences=["France"], system="Answer.", **ASK)
q.write(
    ["anthropic"],
    {"messages": messages()},
    cut=[cut.stop_reason, cut.stop_sequence],
    counted=client.messages.count_tokens(model=q.MODEL, messages=[q.user(q.FRANCE)]).input_tokens,
    refused=list(refusals()),
)
