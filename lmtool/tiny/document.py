"""What one piece of training text is, and how a conversation is written down for the model."""

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
    learnt: bool
    """Whether the model is trained to write this stretch, or only to read it."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Text without roles: a story, a proverb, questions and answers on lines of their own."""

    text: str
    opened: bool = False
    """Whether an end-of-text token stands before the text, as some clients send it."""

    def segments(self) -> Iterator[Segment]:
        """Yield the whole text, then the end of the document."""
        if self.opened:
            yield Segment(END_OF_TEXT, learnt=False)
        yield Segment(self.text + END_OF_TEXT, learnt=True)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation between a user and the assistant."""

    turns: Sequence[Turn]
    system: str | None = None

    def question(self) -> str:
        """Return what the model reads before it writes the last reply."""
        *read, _, _ = self.segments()
        return "".join(segment.text for segment in read)

    def segments(self) -> Iterator[Segment]:
        """Yield the conversation as `CHAT_TEMPLATE` writes it; only the replies are learnt."""
        if self.system is not None:
            yield Segment(f"{TURN_START}system\n{self.system}{TURN_END}\n", learnt=False)
        for turn in self.turns:
            yield Segment(f"{TURN_START}user\n{turn.prompt}{TURN_END}\n{TURN_START}assistant\n", learnt=False)
            yield Segment(f"{turn.reply}{TURN_END}", learnt=True)
            yield Segment("\n", learnt=False)


Document = Plain | Chat
