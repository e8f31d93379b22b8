"""Training documents: plain texts and conversations, as segments to be read or written by the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""Token ids 0, 1 and 2, in this order."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Jinja text for tokenizer_config.json; `Chat.segments` writes the same."""


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

    def prompt(self) -> str:
        """Return the prompt of the last reply."""
        *prompt, _, _ = self.segments()
        return "".join(segment.text for segment in prompt)

    def segments(self) -> Iterator[Segment]:
        """Yield the conversation as `CHAT_TEMPLATE` writes it; only the replies are targets."""
        if self.system is not None:
            yield Segment(f"{TURN_START}system\n{self.system}{TURN_END}\n", is_target=False)
        for turn in self.turns:
            yield Segment(f"{TURN_START}user\n{turn.prompt}{TURN_END}\n{TURN_START}assistant\n", is_target=False)
            yield Segment(f"{turn.reply}{TURN_END}", is_target=True)
            yield Segment("\n", is_target=False)


Document = Plain | Chat
