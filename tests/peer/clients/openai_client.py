"""OpenAI's SDK: chat completions, responses, completions. See `questions.py`."""

import openai
import questions as q

client = openai.OpenAI(base_url=f"{q.BASE}/v1", api_key="none", max_retries=0)
thinker = openai.OpenAI(base_url=f"{q.QUOTING}/v1", api_key="none", max_retries=0)


def of_stream(manager):
    """The message that a stream of chat completions ends with; its deltas add up to it."""
    text = thought = ""
    with manager as stream:
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                delta = event.chunk.choices[0].delta
                text += delta.content or ""
                thought += getattr(delta, "reasoning_content", None) or ""
        message = stream.get_final_completion().choices[0].message
    assert text == (message.content or "")
    return message, thought


def chat():
    """Chat completions."""
    ask = {"model": q.MODEL, "temperature": 0, "max_tokens": 60}
    create, parse, stream = (
        client.chat.completions.create,
        client.chat.completions.parse,
        client.chat.completions.stream,
    )
    first = create(messages=[q.user(q.FRANCE)], **ask).choices[0].message
    second = create(messages=[q.user(q.FRANCE), first, q.user(q.ITALY)], **ask).choices[0].message
    tools = [openai.pydantic_function_tool(q.GetWeather, name="get_weather")]
    forced = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    call = parse(messages=[q.user(q.ROME)], **ask, **forced).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": q.SUNNY}
    after = create(messages=[q.user(q.ROME), call, result], tools=tools, **ask).choices[0].message
    streamed, _ = of_stream(stream(messages=[q.user(q.ROME)], **ask, **forced))
    form = parse(messages=[q.user(q.FRANCE)], response_format=q.City, **ask).choices[0].message
    form_stream, _ = of_stream(stream(messages=[q.user(q.FRANCE)], response_format=q.City, **ask))
    return {
        "turns": [first.content, second.content],
        "stream": of_stream(stream(messages=[q.user(q.FRANCE)], **ask))[0].content,
        "tool": [*called(call), after.content],
        "tool_stream": called(streamed),
        "forms": {"parse": form.parsed.model_dump(), "stream": form_stream.parsed.model_dump()},
        **chat_thoughts(forced),
    }


def called(message):
    """Name and arguments of a message's only call."""
    [call] = message.tool_calls
    return [call.function.name, call.function.parsed_arguments.model_dump()]


def chat_thoughts(forced):
    """Thoughts of chat completions."""
    ask = {"model": q.QUOTED, "temperature": 0, "max_tokens": 60, "reasoning_effort": "low"}
    create = thinker.chat.completions.create
    first = create(messages=[q.user(q.THINK)], **ask).choices[0].message
    again = create(messages=[q.user(q.THINK), first, q.user(q.AGAIN)], **ask).choices[0].message
    streamed, thought = of_stream(thinker.chat.completions.stream(messages=[q.user(q.THINK)], **ask))
    call = thinker.chat.completions.parse(messages=[q.user(q.THINK)], **ask, **forced).choices[0].message
    return {
        "thought": [first.reasoning_content, first.content],
        "thought_stream": [thought, streamed.content],
        "again": [again.reasoning_content, again.content],
        "thought_tool": [call.reasoning_content, called(call)[1]],
    }


def responses():
    """Responses."""
    ask = {"model": q.MODEL, "temperature": 0, "max_output_tokens": 60}
    create = client.responses.create
    first = create(input=q.FRANCE, **ask)
    second = create(input=[q.user(q.FRANCE), *first.output, q.user(q.ITALY)], **ask)
    kept = create(input=q.ITALY, previous_response_id=first.id, **ask)
    assert kept.output_text == second.output_text
    with client.responses.stream(input=q.FRANCE, **ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    tool = {"type": "function", "name": "get_weather", "description": q.DESCRIPTION, "parameters": q.PARAMETERS}
    forced = {"tools": [{**tool, "strict": True}], "tool_choice": "required", "parallel_tool_calls": False}
    [call] = client.responses.parse(input=q.ROME, **ask, **forced).output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": q.SUNNY}
    after = create(input=[q.user(q.ROME), call, result], tools=forced["tools"], **ask)
    with client.responses.stream(input=q.ROME, **ask, **forced) as stream:
        [streamed] = stream.get_final_response().output
    with client.responses.stream(input=q.FRANCE, text_format=q.City, **ask) as stream:
        form_stream = stream.get_final_response().output_parsed
    return {
        "turns": [first.output_text, second.output_text],
        "stream": text,
        "tool": [call.name, call.parsed_arguments, after.output_text],
        "tool_stream": [streamed.name, streamed.parsed_arguments],
        "forms": {
            "parse": client.responses.parse(input=q.FRANCE, text_format=q.City, **ask).output_parsed.model_dump(),
            "stream": form_stream.model_dump(),
        },
        **responses_thoughts(forced),
    }


def responses_thoughts(forced):
    """Thoughts of responses: items of their own."""
    ask = {"model": q.QUOTED, "temperature": 0, "max_output_tokens": 60, "reasoning": {"effort": "low"}}
    first = thinker.responses.create(input=q.THINK, **ask)
    again = thinker.responses.create(input=[q.user(q.THINK), *first.output, q.user(q.AGAIN)], **ask)
    with thinker.responses.stream(input=q.THINK, **ask) as stream:
        deltas = [event for event in stream if event.type == "response.reasoning_text.delta"]
        last = stream.get_final_response()
    assert last.output[0].content[0].text == "".join(event.delta for event in deltas)
    item, call = thinker.responses.parse(input=q.THINK, **ask, **forced).output
    return {
        "thought": [first.output[0].content[0].text, first.output_text],
        "thought_stream": [last.output[0].content[0].text, last.output_text],
        "again": [again.output[0].content[0].text, again.output_text],
        "thought_tool": [item.content[0].text, call.parsed_arguments],
    }


completion = client.completions.create(model=q.MODEL, prompt="The capital of France is", max_tokens=8, temperature=0)
q.write(
    ["openai"],
    {"chat completions": chat(), "responses": responses()},
    completion=completion.choices[0].text,
    models=[model.id for model in client.models.list()],
)
