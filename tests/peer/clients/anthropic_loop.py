"""A loop of Anthropic's SDK with a tool: messages, streamed, two turns. See `loops.py`."""

import anthropic
import loops
import questions as q

client = anthropic.Anthropic(base_url=q.BASE, api_key=loops.KEY, max_retries=0, http_client=loops.recording_client())
TOOL = {"name": "get_weather", "description": q.DESCRIPTION, "input_schema": q.PARAMETERS}


def messages():
    """Messages: thought and call go back as they came, with the result."""
    turns = [q.user(q.THINK_CALL)]
    ask = {"model": q.QUOTED, "max_tokens": 1200, "system": loops.SYSTEM, "tools": [TOOL]}
    events = []
    while True:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        with client.messages.stream(messages=turns, thinking=thinking, **ask) as stream:
            events += [event.to_dict() for event in stream]
            message = stream.get_final_message()
        if message.stop_reason != "tool_use":
            return {"events": events, "text": message.content[-1].text}
        turns.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": loops.weather(block.input)}
            for block in message.content
            if block.type == "tool_use"
        ]
        turns.append({"role": "user", "content": results})


loops.write({"messages": messages()})
