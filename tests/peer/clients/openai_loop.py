"""A loop of OpenAI's SDK with a tool: chat completions and responses, streamed, two turns each. See `loops.py`."""

import json

import loops
import openai
import questions as q

client = openai.OpenAI(base_url=f"{q.BASE}/v1", api_key=loops.KEY, max_retries=0, http_client=loops.recording_client())
TOOL = {"name": "get_weather", "description": q.DESCRIPTION, "parameters": q.PARAMETERS}


def chat():
    """Chat completions: the call goes back with its result, until there is none."""
    messages = [{"role": "system", "content": loops.SYSTEM}, q.user(q.THINK_CALL)]
    ask = {"model": q.QUOTED, "temperature": 0, "max_tokens": 80, "stream_options": {"include_usage": True}}
    events = []
    while True:
        with client.chat.completions.stream(
            messages=messages, tools=[{"type": "function", "function": TOOL}], **ask
        ) as stream:
            events += [event.chunk.to_dict() for event in stream if event.type == "chunk"]
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            return {"events": events, "text": message.content}
        messages.append(message.to_dict(exclude_unset=True))
        for call in message.tool_calls:
            result = loops.weather(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def responses():
    """Responses: items of output go back with the result."""
    items = [q.user(q.THINK_CALL)]
    ask = {"model": q.QUOTED, "temperature": 0, "max_output_tokens": 80, "instructions": loops.SYSTEM}
    events = []
    while True:
        with client.responses.stream(
            input=items, tools=[{"type": "function", "strict": True, **TOOL}], **ask
        ) as stream:
            events += [event.to_dict() for event in stream]
            response = stream.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return {"events": events, "text": response.output_text}
        items += [item.to_dict(exclude_unset=True) for item in response.output]
        for call in calls:
            result = loops.weather(json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


loops.write({"chat completions": chat(), "responses": responses()})
