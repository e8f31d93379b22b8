"""New requests made of a stream."""

from __future__ import annotations

import codecs
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import UsageError
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, MixedPrompt
from lmtool.protocol.lmtp.codec import decode_request
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.request_builder import (
    AS_TEXT,
    RULED_OUT,
    Abilities,
    EditableText,
    begun_of,
    context_of,
    editable_text,
    ids_of,
    prompt_of,
    request_of,
)
from lmtool.terminal.tui.request_builder import (
    bias_out as continue_without,
)
from lmtool.terminal.tui.request_builder import (
    branch as continue_with,
)
from lmtool.terminal.tui.runs import visible
from lmtool.terminal.tui.view import View
from lmtool.trace.codec import Header
from lmtool.trace.events import Blob, Frame, JsonText, Message, Vocab
from lmtool.trace.writer import TraceWriter
from tests.terminal.tui.states import asked, chunk, plain, score, side, sse, view_of
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.trace.events import Event


def branch(made: View, row: int, instead: int, server: Abilities | None = None) -> GenerateRequest:
    """What a server is sent; none that is named knows LMTP's document alone."""
    return continue_with(made, row, instead).request_for(server or Abilities())[0]


def bias_out(made: View, row: int, token: int) -> GenerateRequest:
    """The same without a token."""
    return continue_without(made, row, token).request_for(Abilities())[0]


def view(*events: Event) -> View:
    """A view of these events."""
    return view_of(events)


ANSWER = tokens(0.1, token(11), token(12), token(13))


HOLDS: list[tuple[dict[str, object], str]] = [
    ({"constraint": {"regex": "a+"}}, "its constraint"),
    ({"logits_processors": [{"name": "x"}]}, "its logits_processors"),
    ({"presence_penalty": 0.5}, "its presence_penalty"),
    ({"frequency_penalty": 0.5}, "its frequency_penalty"),
    ({"stop": ["bx"]}, "a stop text that may have begun"),
]


WORDS = {1: "There", 2: " was", 3: "\n", 4: b"\xf0\x9f", 5: b"\x99\x82", 6: "→", 7: "", 8: "\t"}


def own(*ids: int) -> EditableText:
    """What a stream of these tokens has."""
    made = side(*plain(*ids), words=WORDS)
    return editable_text(made.view, made.stream)


class TestBranches:
    """Requests that go on from a token."""

    def test_a_branch(self) -> None:
        """The prompt, the tokens before, and another token; the parameters of the stream, and its remaining length."""
        made = branch(view(generate(0.0, max_tokens=20, temperature=0.7), ANSWER), 1, 99)
        assert made.prompt == (5, 6, 7, 11, 99)
        assert (made.sampling.temperature, made.sampling.max_tokens, made.model) == (0.7, 18, "m")
        assert made.sampling.top_logprobs == 5
        assert made.sampling.logit_bias == {}

    def test_ruled_out(self) -> None:
        """The same place again, where the token cannot come; what was biased before stays so."""
        made = bias_out(view(generate(0.0, logit_bias={"4": 2.0}), ANSWER), 2, 13)
        assert made.prompt == (5, 6, 7, 11, 12)
        assert made.sampling.logit_bias == {4: 2.0, 13: RULED_OUT}

    def test_a_branch_is_never_empty(self) -> None:
        """At the end of a stream there is still something to see."""
        assert branch(view(generate(0.0, max_tokens=3), ANSWER), 2, 9).sampling.max_tokens == 8

    def test_a_branch_of_given_text(self) -> None:
        """A SCORE can be gone on from as well: its tokens are those of the given text."""
        score = Frame(
            0.0, ">", 1, JsonText("SCORE", {"model": "m", "prompt": [5], "scored": [11, 12, 13], "stream_id": 1}, "py")
        )
        assert branch(view(score, ANSWER), 1, 9).prompt == (5, 11, 9)

    def test_a_prompt_in_a_blob(self, tmp_path: Path) -> None:
        """A prompt that a trace keeps as a blob is whole again."""
        writer = TraceWriter(tmp_path / "a.jsonl", Header(json="py"))
        for event in (Blob(0.0, 0, "ab", [1, 2, 3]), generate(0.0, prompt={"$blob": "ab"}), ANSWER):
            writer.write(event)
        writer.close(1.0)
        file = TraceFile(tmp_path / "a.jsonl")
        file.load(1.0)
        assert branch(View(file.state, file, live=False), 0, 9).prompt == (1, 2, 3, 9)

    def test_an_empty_prompt(self) -> None:
        """What the model put in front of it stands in front of the branch."""
        made = view(generate(0.0, prompt=[]), ANSWER)
        made.state.bos = 1
        assert branch(made, 1, 99).prompt == (1, 11, 99)

    @pytest.mark.parametrize(("fields", "says"), HOLDS)
    def test_what_depends_on_the_tokens_before(self, fields: dict[str, object], says: str) -> None:
        """Kept tokens become a prompt, which a constraint would not read: it is refused by name, never dropped."""
        made = view(Vocab(0.0, 0, {11: "ab"}), generate(0.0, **fields), ANSWER)  # type: ignore[arg-type] # fields
        for ask in (lambda: branch(made, 0, 11), lambda: bias_out(made, 1, 12)):
            with pytest.raises(UsageError, match=says):
                ask()
        kept = bias_out(made, 0, 11)
        asked = decode_request(generate(0.0, **fields).wire()).request  # type: ignore[arg-type, union-attr] # a GENERATE
        assert (kept.constraint, kept.logits_processors, kept.prompt) == (
            asked.constraint,
            asked.logits_processors,
            (5, 6, 7),
        )
        assert replace(kept.sampling, logit_bias={}, max_tokens=32, top_logprobs=1) == asked.sampling

    @pytest.mark.parametrize(
        ("stop", "words", "refused"),
        [("bx", "ab", True), ("x", "ab", False), ("ab", "ab", True), ("bx", "b\n", False), ("x", None, True)],
    )
    def test_stop_texts(self, stop: str, words: str | None, refused: bool) -> None:
        """One that has not begun is found by the branch as well; where nobody spells the tokens that is not known."""
        made = view(Vocab(0.0, 0, {} if words is None else {99: words}), generate(0.0, stop=[stop]), ANSWER)
        if refused:
            with pytest.raises(UsageError, match="stop text"):
                branch(made, 0, 99)
        else:
            assert branch(made, 0, 99).sampling.stop == (stop,)

    def test_parameters_that_count(self) -> None:
        """What is left of min_tokens; the seed, begun anew; a repetition penalty, which counts prompts as well."""
        made = branch(view(generate(0.0, min_tokens=5, seed=3, repetition_penalty=1.5), ANSWER), 1, 99)
        assert (made.sampling.min_tokens, made.sampling.seed, made.sampling.repetition_penalty) == (3, 3, 1.5)
        assert branch(view(generate(0.0, min_tokens=1), ANSWER), 2, 99).sampling.min_tokens == 0

    def test_an_alternative_that_ends_the_stream(self) -> None:
        """Nothing comes after an eos or stop id: a stream with it would have ended there."""
        made = view(generate(0.0, stop_token_ids=[98]), ANSWER)
        made.state.eos = frozenset([99])
        for ending, says in ((98, "stop_token_ids"), (99, "ends the text")):
            with pytest.raises(UsageError, match=says):
                branch(made, 1, ending)
        made = view(generate(0.0, ignore_eos=True), ANSWER)
        made.state.eos = frozenset([99])
        assert branch(made, 1, 99).prompt == (5, 6, 7, 11, 99)

    def test_fields_that_are_not_known(self) -> None:
        """What a branch could not send again is told."""
        with pytest.raises(UsageError, match="the field typical_p"):
            bias_out(view(generate(0.0, typical_p=0.5), ANSWER), 0, 11)

    @pytest.mark.parametrize(
        ("events", "says"),
        [
            ((asked(0.0), sse(0.1, chunk(" a")), sse(0.2, chunk(" b"))), "no ids"),
            (
                (
                    replace(generate(0.0), content=JsonText("GENERATE", {"prompt": "text", "stream_id": 1}, "py")),
                    ANSWER,
                ),
                "as text",
            ),
            ((generate(0.0, prompt={"$redacted": "prompt", "n": 3}), ANSWER), "cannot be sent again"),
            ((ANSWER,), "was not recorded"),
        ],
    )
    def test_what_cannot_be_branched(self, events: tuple[Event, ...], says: str) -> None:
        """Where ids or the request are not known, a sentence says so."""
        with pytest.raises(UsageError, match=says):
            branch(view(*events), 1, 9)


def message(**fields: object) -> Frame:
    """One GENERATE of a conversation."""
    payload = {"messages": [{"role": "user", "content": "Hi"}], "stream_id": 1, "model": "m", **fields}
    return Frame(0.0, ">", 1, JsonText("GENERATE", payload, "py"))


SPELLED = Vocab(0.0, 0, {11: "ab", 12: "c", 13: b"\xf0\x9f", 99: "x"})
GOES_ON = Abilities(generated=True, mixed_prompt=True)


def spelled(text: str) -> list[int]:
    """Ids of the texts that `SPELLED` has, the longest first."""
    return [{"ab": 11, "c": 12, "x": 99, "a": 1, "b": 2}[one] for one in re.findall("ab|a|b|c|x", text)]


class TestBranchesOfTexts:
    """Prompts that were sent as text or messages, and what depends on generated tokens."""

    @pytest.mark.parametrize("fields", [fields for fields, _ in HOLDS])
    def test_what_depends_on_the_tokens_before(self, fields: dict[str, object]) -> None:
        """A server that goes on behind generated ids (GEN-17) keeps it: nothing is lost, and the seed is the same."""
        made = view(SPELLED, generate(0.0, seed=3, max_tokens=20, min_tokens=4, **fields), ANSWER)  # type: ignore[arg-type] # fields
        asked = branch(made, 1, 99, GOES_ON)
        assert (asked.prompt, asked.generated) == ((5, 6, 7), (11, 99))
        assert (asked.sampling.seed, asked.sampling.max_tokens, asked.sampling.min_tokens) == (3, 20, 4)
        parent = decode_request(generate(0.0, **fields).wire()).request  # type: ignore[arg-type, union-attr] # a GENERATE
        assert (asked.constraint, asked.logits_processors) == (parent.constraint, parent.logits_processors)

    def test_messages(self) -> None:
        """They stay as they were, with the very ids behind them; there is always room for some tokens."""
        made = view(SPELLED, message(max_tokens=3), ANSWER)
        asked = branch(made, 2, 99, GOES_ON)
        assert asked.prompt == ChatPrompt((ChatMessage("user", "Hi"),))
        assert (asked.generated, asked.sampling.max_tokens) == ((11, 12, 99), 11)

    def test_a_branch_of_a_branch(self) -> None:
        """What counted as generated still does."""
        made = view(SPELLED, message(generated=[11, 12]), ANSWER)
        assert branch(made, 1, 99, GOES_ON).generated == (11, 12, 11, 99)
        assert context_of(made, made.state.streams[0]) == ChatPrompt((ChatMessage("user", "Hi"),))
        assert begun_of(made, made.state.streams[0]) == (11, 12)
        made = view(SPELLED, generate(0.0, generated=[8, 9]), ANSWER)
        assert context_of(made, made.state.streams[0]) == (5, 6, 7, 8, 9)
        assert branch(made, 1, 99).prompt == (5, 6, 7, 8, 9, 11, 99)

    def test_a_text(self) -> None:
        """Behind a text stand the ids: as generated ones, or as further parts of the prompt."""
        made = view(SPELLED, generate(0.0, prompt="Once"), ANSWER)
        assert branch(made, 1, 99, GOES_ON).generated == (11, 99)
        asked = branch(made, 1, 99, Abilities(mixed_prompt=True))
        assert (asked.prompt, asked.generated) == (MixedPrompt(("Once", (11, 99))), ())

    def test_messages_where_ids_cannot_be_gone_on_with(self) -> None:
        """The answer's beginning is sent as text, if that becomes the same tokens."""
        made, able = view(SPELLED, message(max_tokens=20), ANSWER), Abilities(encode=spelled)
        asked, note = continue_with(made, 1, 99).request_for(able)
        assert asked.prompt == ChatPrompt((ChatMessage("user", "Hi"),), prefill="abx")
        assert (asked.sampling.max_tokens, note) == (18, "")
        assert continue_with(made, 1, 99).request_for(Abilities())[1] == AS_TEXT
        cut = view(SPELLED, Vocab(0.0, 0, {11: "a", 12: "b"}), message(), ANSWER)
        with pytest.raises(UsageError, match="other tokens"):
            branch(cut, 2, 99, able)
        with pytest.raises(UsageError, match="inside a character"):
            branch(made, 1, 13, able)

    def test_a_typed_text(self) -> None:
        """What a person types is cut by the model's tokenizer, here or at the server; else it is refused."""
        made = view(SPELLED, generate(0.0, max_tokens=20), ANSWER)
        typed = continue_with(made, 1, 12, "xab")
        assert typed.request_for(Abilities(encode=spelled))[0].prompt == (5, 6, 7, 11, 99, 11)
        assert typed.request_for(GOES_ON)[0].prompt == MixedPrompt(((5, 6, 7, 11), "xab"))
        with pytest.raises(UsageError, match="continues ids alone"):
            typed.request_for(Abilities())
        chat = continue_with(view(SPELLED, message(), ANSWER), 1, 12, "xab").request_for(GOES_ON)[0]
        assert chat.prompt == ChatPrompt((ChatMessage("user", "Hi"),), prefill="abxab")

    def test_a_pool(self) -> None:
        """Tokens without ids are gone on with as text."""
        answer = tokens(0.1, *({"stream_id": 1, "text": text, "finish_reason": None} for text in (" a", " b", " c")))
        made = view(message(), answer)
        asked, note = continue_with(made, 1, b" x").request_for(Abilities())
        assert asked.prompt == ChatPrompt((ChatMessage("user", "Hi"),), prefill=" a x")
        assert note == AS_TEXT
        with pytest.raises(UsageError, match="inside a character"):
            continue_with(made, 1, b"\xf0")

    def test_an_empty_prompt_that_is_not_known(self) -> None:
        """What a server puts in its place is not lost without a word: only generated ids stand behind it."""
        made = view(SPELLED, generate(0.0, prompt=[]), ANSWER)
        with pytest.raises(UsageError, match="empty prompt"):
            branch(made, 1, 99)
        assert branch(made, 1, 99, GOES_ON).generated == (11, 99)

    def test_buffers(self) -> None:
        """A buffer belongs to another connection."""
        made = view(SPELLED, generate(0.0, prompt=[{"buffer": "story"}, 3]), ANSWER)
        with pytest.raises(UsageError, match="buffer"):
            branch(made, 1, 99, GOES_ON)


class TestRequestOfAStream:
    """Requests of streams, read again."""

    def test_what_a_stream_follows(self) -> None:
        """Ids as they were sent, however many; a text; messages."""
        long = list(range(1000))
        for prompt, expected in ((long, tuple(long)), ("a text", "a text")):
            made = view(generate(0.0, prompt=prompt))
            assert prompt_of(made, request_of(made, made.state.streams[0])) == expected
            assert context_of(made, made.state.streams[0]) == expected
        payload = {"messages": [{"role": "user", "content": "Hi"}], "stream_id": 1}
        made = view(Frame(0.0, ">", 1, JsonText("GENERATE", payload, "py")))
        assert context_of(made, made.state.streams[0]) == ChatPrompt((ChatMessage("user", "Hi"),))

    def test_an_empty_prompt(self) -> None:
        """GENERATE begins it with the model's bos; before SCORE there is nothing."""
        made, scored = view(generate(0.0, prompt=[])), view(score([], [1]))
        assert context_of(made, made.state.streams[0]) == ""
        for one in (made, scored):
            one.state.bos = 9
        assert context_of(made, made.state.streams[0]) == (9,)
        assert context_of(scored, scored.state.streams[0]) == ""

    def test_an_http_request(self) -> None:
        """Of its body counts what a model is told; it has no ids to be asked again."""
        made, other = view(asked(0.0), sse(0.1, chunk(" a"))), view(asked(0.0, prompt="other"))
        assert context_of(made, made.state.streams[0]) == context_of(made, made.state.streams[0])
        assert context_of(made, made.state.streams[0]) != context_of(other, other.state.streams[0])
        with pytest.raises(UsageError, match="no ids"):
            request_of(made, made.state.streams[0])

    def test_what_is_not_known(self) -> None:
        """A request that was redacted or never seen, and tokens without ids, cannot be asked again."""
        for made, says in (
            (view(tokens(0.1, token(1))), "was not recorded"),
            (view(generate(0.0, prompt={"$redacted": "prompt", "n": 3})), "cannot be sent again"),
        ):
            with pytest.raises(UsageError, match=says):
                request_of(made, made.state.streams[0])
            assert context_of(made, made.state.streams[0]) is None
        made = view(generate(0.0), tokens(0.1, {"stream_id": 1, "text": "no id", "finish_reason": None}))
        with pytest.raises(UsageError, match="have no ids"):
            ids_of(made, made.state.streams[0], 1)


class TestScoredText:
    """A stream's tokens as a line to edit."""

    def test_unedited(self) -> None:
        """All ids as they are, after the stream's own prompt; nothing is left to be tokenized."""
        made = own(1, 2, 3, 4, 5, 7)
        assert made.line == "There was⏎🙂"
        given = made.after_edit(made.line)
        assert (given.prompt, given.before, given.text, given.after) == ((5, 6, 7), (1, 2, 3, 4, 5, 7), "", ())
        assert given.model == "m"

    @pytest.mark.parametrize(
        ("line", "before", "text", "after"),
        [
            ("There was cat", (1, 2), " cat", ()),  # the ending without a text stood behind what is gone
            ("There was⏎🙂!", (1, 2, 3, 4, 5), "!", ()),
            ("There were⏎🙂", (1,), " were", (3, 4, 5, 7)),
            ("There was🙂", (1, 2), "", (4, 5, 7)),
            ("There was⏎⏎🙂", (1, 2, 3), "\n", (4, 5, 7)),
            ("Where was⏎🙂", (), "Where", (2, 3, 4, 5, 7)),
            ("There was⏎🚀", (1, 2, 3), "🚀", ()),
            ("", (), "", ()),
        ],
    )
    def test_edited(self, line: str, before: tuple[int, ...], text: str, after: tuple[int, ...]) -> None:
        """Only what differs is left to be tokenized; tokens that make a character together stay together."""
        given = own(1, 2, 3, 4, 5, 7).after_edit(line)
        assert (given.before, given.text, given.after) == (before, text, after)

    def test_signs_stay_what_they_stand_for(self) -> None:
        """A tab is shown as the arrow that a model may have written: what was not touched is what it was."""
        made = own(6, 8, 1)
        assert made.line == "→→There"
        assert made.after_edit("→→Then").text == "Then"
        assert made.after_edit("→→→There").whole == "→\t→There"
        assert own(8, 8).after_edit("→x→").whole == "\tx\t"

    def test_a_stream_without_tokens(self) -> None:
        """All that is typed continues its prompt."""
        given = own().after_edit("Hello⏎")
        assert (given.before, given.text, given.after) == ((), "Hello\n", ())

    def test_a_score(self) -> None:
        """What was scored can be scored again; it has no bos of its own making."""
        made = side(*plain(1, 2), words=WORDS, ask=score([9, 8], [1, 2]))
        assert editable_text(made.view, made.stream).after_edit("There was").prompt == (9, 8)

    def test_only_what_is_seen(self) -> None:
        """A paused view offers what had come by then."""
        made = side(*plain(1, 2), words=WORDS)
        made.view.moment = 0.05
        assert editable_text(made.view, made.stream).ids == ()

    @given(
        st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), max_size=8),
        st.integers(0, 20),
        st.integers(0, 20),
        st.text("aT→⏎ é🙂", max_size=3),
    )
    def test_the_parts_make_the_line(self, ids: list[int], begin: int, length: int, typed: str) -> None:
        """Whatever is edited: kept tokens, text and kept tokens spell the edited line, and keep all they can."""
        made = own(*ids)
        line = made.line[:begin] + typed + made.line[begin + length :]
        given = made.after_edit(line)
        assert "".join(map(visible, given.whole)) == line or "�" in line
        assert made.ids[: len(given.before)] == given.before
        assert given.after == made.ids[len(made.ids) - len(given.after) :]
        assert len(given.before) + len(given.after) <= len(made.ids)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for one in given.before:
            piece = WORDS[one]
            decoder.decode(piece if isinstance(piece, bytes) else piece.encode())
        assert not decoder.getstate()[0] or line == made.line

    def test_what_a_request_forgot(self) -> None:
        """A stream that cannot be asked again says so."""
        made = side(*plain(1), ask=generate(0.0, prompt={"$redacted": "prompt", "n": 3}))
        with pytest.raises(Exception, match="cannot be sent again"):
            editable_text(made.view, made.stream)


def test_an_action_is_not_sent_alone() -> None:
    """What an Evergreen action needs are nodes of its session: that, and what can be sent, is said in a sentence."""
    message = Message(0.0, ">", 1, {"actions": [{"name": "GENERATE", "outputs": [{"name": "response", "id": "r"}]}]})
    chunk = {"metadata": {"mimetype": "text/plain"}, "data": "SGk="}
    made = view(message, Message(0.1, "<", 1, {"nodeFragments": [{"id": "r", "chunkFragment": chunk}]}))
    for ask in (lambda: request_of(made, made.state.streams[0]), lambda: branch(made, 0, 5)):
        with pytest.raises(UsageError, match="cannot be sent again alone") as refused:
            ask()
        assert "trace drive" in refused.value.sentence
