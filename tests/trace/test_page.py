"""Streams of traces as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from lmtool.core.errors import UsageError
from lmtool.trace import page
from lmtool.trace.events import Event, Frame, JsonText, Vocab
from lmtool.trace.page import Page


def request(stream: int, prompt: object = "Say <hi> & go") -> Frame:
    """A request of a stream."""
    name = "messages" if isinstance(prompt, list) else "prompt"
    return Frame(0, ">", 1, JsonText("GENERATE", {name: prompt, "stream_id": stream, "model": "m"}, "py"))


def answer(stream: int, *tokens: tuple[int, float], reason: str = "stop") -> list[Event]:
    """The tokens of a stream, each with itself and the id 9 as alternatives."""
    entries = [
        {"stream_id": stream, "token": t, "logprob": p, "finish_reason": None, "top_logprobs": {str(t): p, "9": -5.0}}
        for t, p in tokens
    ]
    entries[-1]["finish_reason"] = reason
    return [Frame(1, "<", 1, JsonText("TOKEN", [entry], "py")) for entry in entries]


VOCAB = Vocab(0, 0, {1: "<b>", 2: " \x1b[31m", 3: '"quoted"', 9: "</i><script>"})


def made(*events: Event, **more: object) -> str:
    """The page of these events."""
    made_page = Page(**more)  # type: ignore[arg-type]
    made_page.read([VOCAB, *events])
    return made_page.html()


class Elements(HTMLParser):
    """Names of elements, and attributes of tokens."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.tokens: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag == "i":
            self.tokens.append(dict(attrs))


def test_thoughts() -> None:
    """A token of a thought is purple and italic, with the step of its heat; pointing at it says so."""
    thought = {"stream_id": 1, "token": 2, "logprob": -4.0, "text": "", "reasoning": "Hm", "finish_reason": None}
    text = made(request(1), Frame(1, "<", 1, JsonText("TOKEN", [thought], "py")), *answer(1, (1, -0.01)))
    first, second = Elements(text).tokens
    assert first["class"] == "h6 thought"
    assert "thought" in (first["title"] or "")
    assert second["class"] == "h0"
    assert "i.thought {" in text
    assert ".thought.h6 {" in text


def test_tokens() -> None:
    """A token has its colour, and its figures and alternatives for pointer and keys; what is unlikely is marked."""
    text = made(request(1), *answer(1, (1, -0.01), (3, -4.0)))
    likely, unlikely = Elements(text).tokens
    assert likely["title"] == "token 1 · id 1 · p .990 · 0.0 bits\n .990  '<b>'\n .007  '</i><script>'"
    assert likely["class"] == "h0"
    assert unlikely["class"] == "h6"
    assert ("data-rare" in likely, "data-rare" in unlikely) == (False, True)
    assert "2 tokens · stop · perplexity" in text
    assert "<title>Say &lt;hi&gt; &amp; go</title>" in text


def test_nothing_of_a_model_is_markup() -> None:
    """Texts are shown, never interpreted, and the page asks for nothing elsewhere."""
    text = made(request(1, [{"role": "user", "content": "<script>"}]), *answer(1, (1, -1.0), (2, -1.0), (3, -1.0)))
    assert Elements(text).names.count("script") == 1
    assert "b" not in Elements(text).names
    assert "\x1b" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=|@import|url\(|https?:", text)
    assert "<blockquote>user: &lt;script&gt;</blockquote>" in text


def test_prompts() -> None:
    """A prompt is shown as text: ids by what they spell, of a conversation the last message."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert "<blockquote>(1 messages before)\nuser: Hi</blockquote>" in made(request(1, messages), *answer(1, (1, -1.0)))
    spelled = Frame(0, ">", 1, JsonText("GENERATE", {"prompt": [3, 7], "stream_id": 1}, "py"))
    assert "<blockquote>&quot;quoted&quot;⟨#7⟩</blockquote>" in made(spelled, *answer(1, (1, -1.0)))
    assert f"{'x' * 4000}…</blockquote>" in made(request(1, "x" * 5000), *answer(1, (1, -1.0)))


def test_comparison() -> None:
    """Of two streams, from one trace or two, the first difference is marked."""
    page_of_two = Page()
    page_of_two.read([VOCAB, request(1), *answer(1, (1, -1.0), (2, -1.0))], "before.lmtp.jsonl")
    page_of_two.read([VOCAB, request(1), *answer(1, (1, -1.0), (3, -1.0))], "after.lmtp.jsonl")
    text = page_of_two.html("Two")
    assert [text.index(f"<h2>{name}.lmtp.jsonl 1/1") for name in ("before", "after")]
    assert "first difference" in text
    assert "first difference" not in made(request(1), *answer(1, (1, -1.0)))
    assert "2 streams · 4 tokens · equal for 1 tokens" in text
    assert [str(token["class"]).endswith("differs") for token in Elements(text).tokens] == [False, True, False, True]
    assert "<title>Two</title>" in text
    same = made(request(1), request(2), *answer(1, (1, -1.0)), *answer(2, (1, -1.0)))
    assert "2 streams · 2 tokens · equal<" in same


def test_choice_of_streams_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams can be chosen by their labels; more tokens than a page may have are refused."""
    events = [request(1), request(2), *answer(1, (1, -1.0)), *answer(2, (2, -1.0), (3, -1.0), reason="length")]
    assert "1 stream · 2 tokens" in made(*events, labels=frozenset({"1/2"}))
    monkeypatch.setattr(page, "MAX_TOKENS", 2)
    with pytest.raises(UsageError, match="more than 2 tokens"):
        made(*events)


def test_heat() -> None:
    """Colours tell what was chosen: here the rank."""
    text = made(request(1), *answer(1, (1, -9.0)), heat="rank")
    assert Elements(text).tokens[0]["class"] == "h1"
    assert '<p class="legend">rank ' in text
