"""Training documents: plain texts and conversations, as segments to be read or written by the model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""Token ids 0, 1 and 2, in this order."""

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
TOOL_TOKENS = (CALL_START, CALL_END)
"""The last token ids of the vocabulary; they show as text."""

CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{{ '\n\n' }}{% endif %}"
    "<tools>\n"
    "{% for tool in tools %}{{ (tool['function'] or tool) | tojson }}{{ '\n' }}{% endfor %}"
    "</tools><|im_end|>\n"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ message['content'] }}\n</tool_response><|im_end|>\n"
    "{% elif not (tools and loop.first and message['role'] == 'system') %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\n' if message['content'] or not loop.first else '' }}"
    "<tool_call>\n{\"name\": \"{{ call['function']['name'] }}\", "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}\n</tool_call>"
    "{% endfor %}"
    "<|im_end|>\n"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Jinja text for tokenizer_config.json; `Chat.segments` writes the same. Calls of tools are written as Hermes does."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer."""

    prompt: str
    reply: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a document."""

    text: str
    is_target: bool
    """Whether the model is trained to write this stretch, or only to read it."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Text without roles: a story, a proverb, questions and answers on lines of their own."""

    text: str
    leading_token: bool = False
    """Whether an end-of-text token stands before the text, as some clients send it."""

    def segments(self) -> Iterator[Segment]:
        """Yield the whole text, then the end of the document."""
        if self.leading_token:
            yield Segment(END_OF_TEXT, is_target=False)
        yield Segment(self.text + END_OF_TEXT, is_target=True)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation between a user and the assistant."""

    turns: Sequence[Turn]
    system: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions, as the API has them."""

    def prompt(self) -> str:
        """Return the prompt of the last reply."""
        *prompt, _, _ = self.segments()
        return "".join(segment.text for segment in prompt)

    def segments(self) -> Iterator[Segment]:
        """Yield the conversation as `CHAT_TEMPLATE` writes it; only the replies are targets."""
        if self.system is not None or self.tools:
            yield Segment(f"{TURN_START}system\n{self._system_text()}{TURN_END}\n", is_target=False)
        for turn in self.turns:
            yield Segment(f"{TURN_START}user\n{turn.prompt}{TURN_END}\n{TURN_START}assistant\n", is_target=False)
            yield Segment(f"{turn.reply}{TURN_END}", is_target=True)
            yield Segment("\n", is_target=False)

    def _system_text(self) -> str:
        listed = "".join(json.dumps(tool["function"], ensure_ascii=False) + "\n" for tool in self.tools)
        parts = [self.system] if self.system is not None else []
        return "\n\n".join(parts + ([f"<tools>\n{listed}</tools>"] if self.tools else []))


def tool_call(name: str, arguments: Mapping[str, object]) -> str:
    """Return the call of a tool as the model is to write it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{CALL_START}\n{call}\n{CALL_END}"


Document = Plain | Chat
