"""What events mean: LMTP and OpenAI-compatible streams alike."""

from __future__ import annotations

from lmtool.trace.conversation import Began, Conversation, Produced, StreamText
from lmtool.trace.events import Done, Frame, Parsed, Piece, Request, Vocab
from lmtool.types import TokenOutput
from tests.trace.conftest import generate, token, tokens


def outputs(conversation: Conversation, *events: object) -> list[tuple[str, TokenOutput]]:
    """All outputs of these events, with their streams."""
    steps = [step for event in events for step in conversation.follow(event)]  # type: ignore[arg-type]
    return [(step.stream, step.output) for step in steps if isinstance(step, Produced)]


def test_streams_are_told_apart() -> None:
    """Tokens belong to the stream of their id and connection; one frame may hold several streams."""
    found = outputs(Conversation(), tokens(1, token(7, 1), token(8, 2)), tokens(2, token(9, 1), connection=2))
    assert [(stream, output.token) for stream, output in found] == [("1/1", 7), ("1/2", 8), ("2/1", 9)]


def test_a_request_tells_what_it_asks_for() -> None:
    """Model and length of the prompt, also where the prompt was redacted."""
    (began,) = Conversation().follow(generate(1, 4))
    assert isinstance(began, Began)
    assert (began.stream, began.kind, began.model, began.prompt_length) == ("1/4", "GENERATE", "m", 3)
    (began,) = Conversation().follow(generate(1, prompt={"$redacted": "prompt", "n": 12, "sha256": ""}))
    assert isinstance(began, Began)
    assert began.prompt_length == 12


def test_infinities_are_no_numbers() -> None:
    """LMQL's server writes -Infinity: the token counts, its logprob does not."""
    frame = Frame(1, "<", 1, 'TOKEN [{"token": 5, "stream_id": 1, "logprob": -Infinity}]')
    assert outputs(Conversation(), frame) == [("1/1", TokenOutput("", 5))]


def test_what_is_no_answer_means_nothing() -> None:
    """Binary frames, other commands and broken payloads are passed over."""
    frames = [Frame(1, "<", 1, b"x"), Frame(1, "<", 1, "TOKEN {"), Frame(1, ">", 1, "HELLO {}"), Frame(1, "<", 1, "")]
    assert outputs(Conversation(), *frames) == []


def chunk(value: object) -> Piece:
    """One chunk of an OpenAI-compatible stream."""
    return Piece(1, "sse", 3, Parsed("data: ", value, "compact"))


def test_openai_streams_are_streams() -> None:
    """Chat chunks, completions and errors; each request of a connection is a stream."""
    request = Request(0, 3, "POST", "/v1/chat/completions", {}, Parsed("", {"model": "m", "messages": [1, 2]}, "py"))
    logprobs = {"content": [{"token": "a", "logprob": -0.25}]}
    conversation = Conversation()
    (began,) = conversation.follow(request)
    assert isinstance(began, Began)
    assert (began.stream, began.kind, began.prompt_length) == ("3/1", "POST /v1/chat/completions", 2)
    found = outputs(
        conversation,
        chunk({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}),
        chunk({"choices": [{"delta": {"content": "a"}, "logprobs": logprobs, "finish_reason": None}]}),
        chunk({"choices": [{"delta": {}, "finish_reason": "length"}]}),
        Piece(1, "sse", 3, "data: [DONE]\n\n"),
        Done(1, 3),
        chunk({"choices": [{"text": "b", "finish_reason": "stop"}]}),
        chunk({"error": {"message": "too long"}}),
        chunk({"choices": 7}),
    )
    assert [(s, o.text, o.logprob, o.finish_reason, o.error) for s, o in found] == [
        ("3/1", "", None, None, None),
        ("3/1", "a", -0.25, None, None),
        ("3/1", "", None, "length", None),
        ("3/2", "b", None, "stop", None),
        ("3/2", None, None, None, "too long"),
    ]


def test_text_comes_with_whole_characters() -> None:
    """A character split over tokens is shown once it is whole; unknown ids by their number; an open tail as U+FFFD."""
    conversation = Conversation()
    conversation.follow(Vocab(0, 0, {1: "Hi ", 2: b"\xf0\x9f", 3: b"\x99\x82"}))
    text = StreamText(conversation)
    given = [text.add(TokenOutput("", i)) for i in (1, 2, 3, 9)]
    assert given == ["Hi ", "", "🙂", "⟨#9⟩"]
    assert text.add(TokenOutput("", 2, finish_reason="stop")) == "�"
    assert text.add(TokenOutput("", text="as sent")) == "as sent"
    assert conversation.text_of(2) == "⟨f0 9f⟩"
    assert conversation.text_of(99) is None
