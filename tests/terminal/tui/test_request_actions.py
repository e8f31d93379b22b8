"""Keys that send requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.terminal.tui.options import InspectorOptions
from lmtool.trace.events import JsonText, Request
from tests.terminal.tui.scripted import Scripted, conversation, event, request, tokens, watching
from tests.terminal.tui.states import asked, chunk, sse

if TYPE_CHECKING:
    from lmtool.trace.events import Event


async def test_branch() -> None:
    """B goes on from the alternative under the cursor: prompt, kept tokens, that token; the tree keeps the parent."""
    async with watching() as seen:
        await seen.press("2", "g", "l", "3")
        await seen.press("j", "b")
        await seen.settle()
        (asked,) = seen.source.requests
        top = seen.app.view.measures.alternatives(2)
        assert asked.prompt == (5, 6, 7, top[1][0])
        assert asked.sampling.top_logprobs >= 5
        assert seen.app.view.current is not None
        assert seen.app.view.current.label == "1/11"
        assert seen.app.view.branch_tokens == {"1/11": "."}
        await seen.press("B")
        assert "1/1" in seen.text()
        assert "└─ #1 '.' 1/11" in seen.text()
        await seen.press("k", "enter")
        assert seen.app.view.current.label == "1/1"


async def test_the_tree_without_unicode() -> None:
    """With `ascii` its lines are ASCII as well."""
    events = [event for event in conversation() if event.time < 0.55]
    async with watching(events, InspectorOptions(ascii=True)) as seen:
        await seen.press("2", "g", "l", "3", "j", "b")
        await seen.settle()
        await seen.press("B")
        assert "`- #1" in seen.text()
        assert seen.text().isascii()


async def test_the_tree_has_a_line_a_stream() -> None:
    """A text that is wider than the screen is cut with a sign, not broken."""
    words = event(0.0, "vocab", 0, {"7": "word " * 60})
    async with watching([words, request(0.1, 1), tokens(0.2, (1, 7, -0.1))]) as seen:
        await seen.press("2", "g", "3", "b")
        await seen.settle()
        await seen.press("B")
        shown = seen.rows()
        parent = next(y for y, row in enumerate(shown) if "1/1 word word" in row and "…" in row)
        assert "└─ #0" in shown[parent + 1]


async def test_bias_out() -> None:
    """X asks again without the alternative under the cursor."""
    async with watching() as seen:
        await seen.press("2", "g", "l", "x")
        (asked,) = seen.source.requests
        assert asked.prompt == (5, 6, 7)
        assert list(asked.sampling.logit_bias.values()) == [-100.0]


async def test_a_click_on_a_chosen_bar_branches() -> None:
    """The first click chooses a bar, the second goes on from it."""
    async with watching() as seen:
        await seen.press("2", "g", "l")
        pane = seen.app.main.panes["detail"]
        row = next(y for y, line in enumerate(pane.text) if "' dog'" in line)
        await seen.pilot.click(pane, offset=(5, row + 1))
        await seen.settle()
        assert not seen.source.requests
        await seen.pilot.click(pane, offset=(5, row + 1))
        await seen.settle()
        assert seen.source.requests[0].prompt == (5, 6, 7, 13)


async def test_prompt() -> None:
    """I asks for a prompt, takes parameters from its end, and up brings the last one back."""
    async with watching() as seen:
        await seen.press("i", *"Hi max_tokens=3", "enter")
        (asked,) = seen.source.requests
        assert (asked.prompt, asked.sampling.max_tokens) == ("Hi", 3)
        await seen.press("i", "up")
        assert "Hi max_tokens=3" in seen.text()
        await seen.press("down", "escape")
        await seen.press("i", *"x top_k=.5", "enter")
        assert "expected a whole number" in seen.text()
        await seen.press("escape")
        assert len(seen.source.requests) == 1


async def test_a_refused_prompt_is_told() -> None:
    """What the server or the source refuses is a sentence below the panes."""
    async with watching() as seen:
        await seen.press("i", *"refuse me", "enter")
        await seen.settle()
        assert "that prompt is refused" in seen.text()


async def test_score() -> None:
    """S offers the stream's own tokens after its own prompt; sent as they are, they stay the ids they were."""
    async with watching() as seen:
        await seen.press("S")
        assert "the fox🙂⏎." in seen.text()
        await seen.press("enter")
        (given,) = seen.source.scores
        assert (given.prompt, given.before, given.text, given.after) == ((5, 6), (7, 8, 10, 11, 12, 9), "", ())
        assert "1/99 scores 6 tokens of 1/1 as they are; = compares" in seen.text()
        assert seen.app.branches.origin("1/99") == "1/1"


async def test_score_of_an_edited_text() -> None:
    """What a person changes is cut into tokens anew, what they leave is not."""
    async with watching() as seen:
        await seen.press("S", "end", "backspace", "!", "enter")
        (given,) = seen.source.scores
        assert (given.before, given.text, given.after) == ((7, 8, 10, 11, 12), "!", ())
        assert "scores 5 tokens of 1/1 as they are, the rest tokenized anew" in seen.text()
        await seen.press("S", "escape")
        assert len(seen.source.scores) == 1


async def test_score_of_a_text_of_ones_own() -> None:
    """Where there is no stream of ids, a prompt and a text are asked for."""
    for events in ([], [asked(0.0), sse(0.1, chunk(" a"))]):
        async with watching(events) as seen:
            await seen.press("S")
            assert ("no ids" in seen.text()) == bool(events)
            await seen.press(*"Hi => you", "enter")
            (given,) = seen.source.scores
            assert (given.prompt, given.before, given.text) == ("Hi", (), " you")
            await seen.press("S", "enter")
            assert len(seen.source.scores) == 1


def http_answer(first: float, connection: int, *texts: str) -> list[Event]:
    """An answer in pieces, each with an alternative."""
    pieces = []
    for i, text in enumerate(texts):
        logprobs = {"tokens": [text], "token_logprobs": [-0.1], "top_logprobs": [{text: -0.1, " x": -2.5}]}
        pieces.append(sse(first + i / 100, chunk(text, logprobs=logprobs), connection))
    return pieces


async def test_branch_of_an_http_answer() -> None:
    """It goes on over HTTP behind the text of its tokens; the tree keeps it, and `=` aligns both behind one prompt."""
    source = Scripted([asked(0.0), *http_answer(0.1, 1, " a", " b", " c")], http=True)
    request = Request(1.0, 7, "POST", "/v1/completions", {}, JsonText("", {"prompt": "Once a x"}, "py"))
    source.next_answer = [request, *http_answer(1.1, 7, " d", " e")]
    async with watching(source=source) as seen:
        await seen.press("2", "g", "l", "3", "j", "b")
        await seen.settle()
        (answer,) = source.answers
        assert (answer.path, answer.text, answer.pieces) == ("/v1/completions", " a x", (b" a", b" x"))
        assert (answer.used, answer.body["prompt"]) == (1, "Once")
        await seen.press("B")
        assert "└─ #1 ' x' 7/1" in seen.text()
        await seen.press("escape", "=")
        shown = seen.text()
        assert "Compare 1/1 with 7/1" in shown
        assert "prompts differ" not in shown
        await seen.press("escape", "x")
        assert "no ids" in seen.text()


async def test_score_of_an_http_answer() -> None:
    """Unedited its tokens stay what they are; an edited text has none that are known. `=` knows whose score it is."""
    source = Scripted([asked(0.0), *http_answer(0.1, 1, " a", " b")], http=True)
    async with watching(source=source) as seen:
        await seen.press("S")
        assert "the text of 1/1 behind its own prompt" in " ".join(seen.text().split())
        await seen.press("enter")
        assert (source.answers[0].text, source.answers[0].pieces) == (" a b", (b" a", b" b"))
        assert seen.app.branches.origin("1/98") == "1/1"
        await seen.press("S", "end", *" dog", "enter")
        assert (source.answers[1].text, source.answers[1].pieces) == (" a b dog", None)


async def test_a_text_in_the_place_of_a_token() -> None:
    """Where there is no alternative a text is asked for; `:branch TEXT` takes one anywhere."""
    source = Scripted([asked(0.0), sse(0.1, chunk(" a")), sse(0.2, chunk(" b"))], http=True)
    async with watching(source=source) as seen:
        await seen.press("2", "g", "l", "b")
        assert "what shall stand in its place?" in seen.text()
        await seen.press(*" dog", "enter")
        await seen.settle()
        assert [(one.text, one.pieces) for one in source.answers] == [(" a dog", None)]
        await seen.press(":", *"branch cat", "enter")
        await seen.settle()
        assert source.answers[-1].text == " acat"


async def test_why_nothing_goes_on() -> None:
    """A source without a server for HTTP says so, and a request that cannot be gone on with is told."""
    async with watching([asked(0.0), *http_answer(0.1, 1, " a")]) as seen:
        await seen.press("2", "g", "b")
        assert "this one only plays" in seen.text()
    body = {"response_format": {"type": "json_object"}}
    async with watching(source=Scripted([asked(0.0, **body), *http_answer(0.1, 1, " a")], http=True)) as seen:
        await seen.press("2", "g", "b")
        assert "the form that its answer must have" in seen.text()


async def test_cancel() -> None:
    """D ends a stream that still runs."""
    async with watching() as seen:
        await seen.press("D")
        assert "over already" in seen.text()
        await seen.press("j", "D")
        assert seen.source.cancelled == ["1/2"]


async def test_a_source_that_cannot_ask_says_so() -> None:
    """b, x, i and S tell why there is no server to ask."""
    async with watching(source=Scripted(conversation(), asks=False)) as seen:
        for key in "bxiS":
            await seen.press(key)
            assert "this one only plays" in seen.text()
