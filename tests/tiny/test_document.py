"""How conversations and plain texts are written down."""

from __future__ import annotations

from transformers import AutoTokenizer

from lmtool.tiny.document import Chat, Plain, Turn
from lmtool.tiny.path import MODEL_DIR

CHAT = Chat([Turn("Hi", "Hello!"), Turn("Who are you?", "I am tiny.")], system="Be brief.")


def test_only_replies_are_learnt() -> None:
    """The model learns to write replies and their end, and to read the rest."""
    assert [s.text for s in CHAT.segments() if s.learnt] == ["Hello!<|im_end|>", "I am tiny.<|im_end|>"]


def test_plain_text_is_learnt_with_its_end() -> None:
    """A plain text is learnt whole; a leading end-of-text token is only read."""
    segments = list(Plain("Once.", opened=True).segments())
    assert [(s.text, s.learnt) for s in segments] == [("<|endoftext|>", False), ("Once.<|endoftext|>", True)]


def test_question_stops_before_the_reply() -> None:
    """A question is everything up to the place where the assistant's last reply begins."""
    assert CHAT.question().endswith("<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n")


def test_chat_template_writes_the_same() -> None:
    """The shipped chat template and the training text agree to the letter."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Who are you?"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == CHAT.question()
    messages.append({"role": "assistant", "content": "I am tiny."})
    whole = "".join(segment.text for segment in CHAT.segments())
    assert tokenizer.apply_chat_template(messages, tokenize=False) == whole
