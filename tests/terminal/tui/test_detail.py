"""The pane of one token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lmtool.terminal.tui.documents.frames import FramesDocument, indented
from lmtool.terminal.tui.documents.streams import StreamsDocument, TimeDocument, spark_line
from lmtool.terminal.tui.documents.tokens import DetailDocument, InterleavedDocument, TableDocument
from lmtool.terminal.tui.styles import ASCII, UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.events import Done, Response
from lmtool.trace.filter import parse
from tests.terminal.tui.scripted import conversation, event, request, tokens
from tests.terminal.tui.states import asked, chunk, rows, sse, text, view_of
from tests.trace.test_session_actions import action, leaf, message

if TYPE_CHECKING:
    from lmtool.trace.events import Event


def shown_of(*events: Event, columns: int = 60) -> str:
    """The pane on the last token of these events."""
    return "\n".join(rows(DetailDocument(view_of(events), UNICODE), columns))


def brought(**entry: object) -> Event:
    """A TOKEN frame with one entry of stream 1, as a server may write it."""
    return event(0.2, "<", "TOKEN", [{"token": 7, "stream_id": 1, "finish_reason": None, **entry}])


class TestDetail:
    """One token."""

    def test_facts(self, view: View) -> None:
        """Text, id, bytes, p, logprob, bits, rank, entropy as a range, the mass that was sent."""
        view.choose_token(2)
        shown = "\n".join(rows(DetailDocument(view, UNICODE), 50))
        for part in (
            "' fox'",
            "id 8",
            "0x20 66 6f 78",
            "p .007",
            "logprob -5.000",
            "7.21 bits",
            "rank 3",
            "top-3 mass .424",
        ):
            assert part in shown
        assert "entropy" in shown
        assert "…" in shown.split("entropy")[1].split("bits")[0]

    def test_bars(self, view: View) -> None:
        """Best first with the sum so far, the chosen one and the one under the cursor marked, the rest as `other`."""
        view.choose_token(2)
        view.bar = 1
        shown = [row for row in rows(DetailDocument(view, UNICODE), 50) if "█" in row or "◀" in row]
        assert shown[0].startswith(" ' dog'")
        assert shown[0].endswith(".368  .368")
        assert shown[1].startswith("▸'.'")
        assert shown[2].endswith(".424◀")
        assert shown[3].startswith(" other")
        assert shown[3].endswith(".576")

    def test_a_piece_of_a_character(self, view: View) -> None:
        """The bytes of all its tokens, and what they make."""
        view.choose_token(4)
        assert "⟨f0 9f⟩ ⟨99 82⟩ → 🙂" in rows(DetailDocument(view, UNICODE), 50)[1]

    def test_arrival(self, view: View) -> None:
        """How long after the token before, and who came along."""
        view.choose_token(2)
        shown = "\n".join(rows(DetailDocument(view, UNICODE), 50))
        assert "1/1 #1" in shown
        assert "arrived +100ms after the one before" in shown
        assert "(2 tokens in it)" in shown

    def test_nothing_is_cut_in_a_narrow_pane(self, view: View) -> None:
        """Phrases go to the next line."""
        view.choose_token(2)
        shown = "\n".join(rows(DetailDocument(view, ASCII), 34))
        for part in ("rank 3", "top-3 mass .424", "(2 tokens in it)"):
            assert part in shown

    @pytest.mark.parametrize(
        ("logprob", "top", "asked", "forced"),
        [
            (0.0, {"7": 0.0}, 3, True),
            (0.0, {"7": 0.0}, 1, False),  # nothing else was asked for
            (0.0, {"7": 0.0, "8": -20.0}, 3, False),  # certain within rounding, and yet not alone
            (-0.5, {"7": -0.5}, 3, False),
        ],
    )
    def test_what_holds_the_stream(self, logprob: float, top: dict[str, float], asked: int, forced: bool) -> None:
        """Bias and constraint of the request are told, and whether they left one token only."""
        ask = request(0.1, 1, logit_bias={"7": 3.0, "8": -1.0}, top_logprobs=asked)
        shown = shown_of(ask, brought(logprob=logprob, top_logprobs=top))
        assert "2 ids biased" in shown
        assert ("forced" in shown) is forced

    @pytest.mark.parametrize(
        ("bias", "told"), [({"7": -100}, "1 id forbidden"), ({"7": -101, "8": -1e9}, "2 ids forbidden")]
    )
    def test_what_is_ruled_out(self, bias: dict[str, float], told: str) -> None:
        """A bias of -100 or less keeps an id from ever coming."""
        shown = shown_of(request(0.1, 1, logit_bias={"9": 1.0, **bias}), tokens(0.2, (1, 12, -0.5)))
        assert f"{len(bias) + 1} ids biased" in shown
        assert told in shown
        shown = shown_of(request(0.1, 1, logit_bias={"9": -99.5}), tokens(0.2, (1, 12, -0.5)))
        assert "1 id biased" in shown
        assert "forbidden" not in shown

    @pytest.mark.parametrize(
        ("payload", "mode"),
        [
            ({}, "raw"),
            ({"logit_bias": {"8": 1.0}}, "biased"),
            ({"logprobs_mode": "processed", "top_k": 2, "temperature": 1}, "processed"),
        ],
    )
    def test_which_distribution(self, payload: dict[str, object], mode: str) -> None:
        """Beside a logprob stands what it is the logprob of."""
        assert f"logprob -0.500 {mode}" in shown_of(request(0.1, 1, **payload), tokens(0.2, (1, 7, -0.5)))

    def test_bytes_that_nobody_told(self) -> None:
        """The bytes are the token's own, not those of the sign that stands for it."""
        shown = shown_of(request(0.1, 1), tokens(0.2, (1, 7, -0.5)))
        assert "⟨#7⟩  id 7  bytes not known" in shown
        assert "'⟨" not in shown

    def test_a_chosen_token_behind_the_best(self) -> None:
        """Its rank is a bound, the mass that of the likeliest only, and it has no part in the running sum."""
        came = brought(logprob=-7.0, top_logprobs={"13": -1.0, "9": -1.5, "7": -7.0})
        shown = shown_of(request(0.1, 1, top_logprobs=2), came)
        assert "rank >2" in shown
        assert "top-2 mass .591" in shown
        bars = [row for row in shown.splitlines() if "█" in row or "◀" in row]
        assert [row.split()[-1] for row in bars] == [".368", ".591", "◀", ".408"]

    def test_what_a_server_did_not_normalise(self) -> None:
        """Bars are brought down to a sum of 1, and nothing is said of what was left out."""
        came = brought(logprob=-0.1, top_logprobs={"7": -0.1, "9": -0.2})
        shown = shown_of(request(0.1, 1, top_logprobs=2), came)
        assert "not normalised by the server" in shown
        assert ".525" in shown
        assert "entropy" not in shown
        assert "mass" not in shown

    def test_all_alternatives_can_be_reached(self) -> None:
        """Every one that was sent has a bar: what is under the cursor is seen."""
        top = {str(i): -5.0 - i / 10 for i in range(40)}
        view = view_of([request(0.1, 1, top_logprobs=40), brought(token=39, logprob=-8.9, top_logprobs=top)])
        view.move_bar(99)
        document = DetailDocument(view, UNICODE)
        shown = rows(document, 60)
        anchor = document.anchor(60)
        assert anchor is not None
        assert shown[anchor].startswith("▸⟨#39⟩")

    def test_no_logprob_and_no_alternatives(self) -> None:
        """What was not sent is said."""
        shown = shown_of(request(0.1, 1), brought())
        assert "no logprob was sent" in shown
        assert "no alternatives were sent" in shown

    def test_text_of_unknown_tokens(self) -> None:
        """Over HTTP without logprobs there are pieces of text, which are shown as no token with a probability."""
        shown = shown_of(asked(0.0), sse(0.1, chunk("two tokens")), sse(0.2, chunk("!", finish_reason="stop")))
        assert "a piece of text: its tokens were not named" in shown
        assert "p " not in shown.splitlines()[1]

    def test_parts_of_characters_over_http(self) -> None:
        """A token that is named with its bytes shows them, and they make the character."""
        entries = [{"token": "\ufffd", "bytes": list(part), "logprob": -1} for part in (b"\xf0\x9f", b"\x99\x82")]
        piece = sse(0.1, {"choices": [{"delta": {"content": "🙂"}, "logprobs": {"content": entries}}]})
        shown = shown_of(asked(0.0, "/v1/chat/completions"), piece)
        assert "⟨f0 9f⟩ ⟨99 82⟩ → 🙂" in shown.splitlines()[1]


ATTEMPTS = "main timeout 1200ms, backup ok 86ms"


def test_who_answered_for_a_gateway() -> None:
    """The member and every call, by the header on any route; on the unified API's the member by its replies too."""
    head = Response(0.05, 1, 200, "OK", {"x-lmtool-attempts": ATTEMPTS, "content-type": "text/event-stream"})
    ended = Done(0.2, 1)
    shown = shown_of(asked(0.0, "/v1/chat/completions"), head, sse(0.1, chunk("Hi")), ended, columns=80)
    assert "answered by backup  main timeout 1200ms  backup ok 86ms" in shown
    piece = {"model_id": "backup", "provider_response": {"message": {"content": "Hi"}}, "finish_reason": None}
    unified = asked(0.0, "/v1/language/default/chat")
    assert "answered by backup" in shown_of(unified, sse(0.1, piece))
    failed = {"name": "answer_broken", "message": "the answer of backup broke off", "attempts": []}
    shown = shown_of(unified, sse(0.1, piece), sse(0.2, failed), columns=80)
    assert "the answer of backup broke off" in shown


def test_who_went_on_for_a_gateway() -> None:
    """Behind a seam another member; the calls that a header could not name yet stand in the last piece."""
    head = Response(0.05, 1, 200, "OK", {"x-lmtool-attempts": "main ok 86ms", "content-type": "text/event-stream"})
    seam = {"seam": {"at": 2, "before": "main", "after": "backup"}}
    for path, first in (
        ("/v1/chat/completions", chunk("Hi")),
        ("/v1/language/default/chat", {"model_id": "main", "provider_response": {"message": {"content": "Hi"}}}),
    ):
        calls = [
            {"model": "main", "outcome": "broke off: timeout", "ms": 86},
            {"model": "backup", "outcome": "ok", "ms": 3},
        ]
        last = first | seam | ({} if "chunk" in str(first) else {"attempts": calls})
        shown = shown_of(asked(0.0, path), head, sse(0.1, first), sse(0.2, last), Done(0.3, 1), columns=120)
        assert "answered by main  from character 2 on by backup" in shown
        assert ("main broke off: timeout 86ms  backup ok 3ms" in shown) == ("attempts" in last)


def test_nodes_of_an_action():
    """An Evergreen action is a stream; below its text stand its inputs and outputs as trees of nodes."""
    asked = action(targetSpec={"id": "tiny"})
    prompt = ({"id": "p", "childIds": ["q"]}, leaf("q", "Who's winning?", role="user"))
    events = (
        message(">", *prompt, actions=(asked,)),
        message("<", leaf("response", "Ayrton Senna.", role="assistant")),
    )
    shown = shown_of(*events)
    tree = [line for line in shown.splitlines() if "▸" in line or "text/plain" in line]
    assert tree == [
        "prompt ▸ 1 children",
        '  text/plain user "Who\'s winning?"',
        "▸ response text/plain assistant 'Ayrton Senna.'",
    ]
    assert "a piece of text" in shown


class TestStreams:
    """The table of streams."""

    def test_wide(self, view: View) -> None:
        """Every column of a wide pane, aligned with its heading."""
        heading, first, second = rows(StreamsDocument(view, UNICODE), 118)
        assert first.startswith("▸● 1/1")
        assert first.endswith("✓ stop")
        assert second.endswith("▶ run")
        assert "Hello there" in first
        assert "t=.7" in second
        assert heading.index("state") == first.index("✓")
        assert heading.index("tok/max") + 7 == first.index("6/8") + 3

    def test_columns_go_as_it_gets_narrow(self, view: View) -> None:
        """First the last token, then prompt and times, then the rate; id, count and state stay."""
        shown = {columns: rows(StreamsDocument(view, UNICODE), columns)[0] for columns in (118, 90, 60, 40)}
        assert "last" not in shown[90]
        assert "prompt" in shown[90]
        assert "ttft" not in shown[60]
        assert "tok/s" in shown[60]
        assert shown[40].split() == ["id", "kind", "tok/max", "state"]

    def test_an_error_takes_the_rest_of_the_line(self) -> None:
        """A stream that failed says why, from the column of its last token on."""
        view = view_of([*conversation(), event(1.0, "<", "TOKEN", [{"stream_id": 2, "error": "context overflow"}])])
        assert rows(StreamsDocument(view, ASCII), 118)[2].endswith("  x context overflow")

    def test_nothing_yet_is_told_with_what_to_do(self) -> None:
        """In as many lines as it takes; not where a filter hides what there is."""
        view = view_of([])
        document = StreamsDocument(view, UNICODE, lambda: "point a client at ws://127.0.0.1:8081/")
        assert rows(document, 90)[1:] == ["  no stream yet: point a client at ws://127.0.0.1:8081/"]
        assert rows(document, 34)[1:] == ["  no stream yet: point a client", "  at ws://127.0.0.1:8081/"]
        assert rows(StreamsDocument(view, UNICODE), 40)[1:] == ["  no stream yet"]
        view = view_of()
        view.set_filter(parse("sid:77"))
        assert rows(StreamsDocument(view, UNICODE, lambda: "never"), 90)[1:] == [
            "  no stream for this filter (esc clears it)"
        ]

    def test_marked_streams(self, view: View) -> None:
        """A marked stream has a sign, the one under the cursor another."""
        view.mark_stream()
        view.move_stream(1)
        assert rows(StreamsDocument(view, UNICODE), 60)[1].startswith("=●")


class TestInterleaved:
    """Tokens in order of arrival."""

    def test_rows(self, view: View) -> None:
        """Time once a frame, stream, figure of the heat, token; the cursor's token has a sign."""
        shown = rows(InterleavedDocument(view, UNICODE), 60)
        assert shown[0] == "    0.400 1/1        .905 ▏ the"
        assert shown[1] == "          1/2        .607 ▏ the"
        assert shown[2] == "    0.500 1/1        .007 ▏ fox"
        view.choose_token(2)
        assert "▸ fox" in rows(InterleavedDocument(view, UNICODE), 60)[2]

    def test_narrow(self, view: View) -> None:
        """Without room there is no figure."""
        assert rows(InterleavedDocument(view, UNICODE), 40)[0] == "    0.400 1/1     ▏ the"

    def test_colours(self, view: View) -> None:
        """A surprising token has a later step of the heat than an expected one."""
        document = InterleavedDocument(view, UNICODE)
        styles = [next(run.style for run in reversed(document.line(y, 60)) if "heat" in run.style) for y in (0, 2)]
        assert styles[0].split()[0] < styles[1].split()[0]


class TestTable:
    """Tokens as a table."""

    def test_rows(self, view: View) -> None:
        """Number, id, token, p, bits, rank and the other alternatives under their headings."""
        view.choose_token(2)
        heading, _, fox, *_ = rows(TableDocument(view, UNICODE), 90)
        assert fox == "▸    1       8 ' fox'          .007    7.2    3  ' dog' .368  '.' .050"
        assert heading.index("token") < heading.index("p ") < heading.index("bits") < heading.index("alternatives")


class TestFrames:
    """What went over the wire."""

    def test_rows(self, view: View) -> None:
        """Time, connection, direction, tokens or what was requested; long ones cut with a sign."""
        shown = rows(FramesDocument(view, UNICODE), 60)
        assert shown[0].split(maxsplit=3)[:3] == ["0.000", "1", "·"]
        sent = next(row for row in shown if "GENERATE" in row)
        assert sent.split()[2] == ">"
        assert sent.endswith("> GENERATE 1/1 'Hello there' top=3 max 8")
        both = next(row for row in shown if "' the'" in row)
        assert both.endswith("< 1/1 ' the' .905  1/2 ' the' .607")
        assert any(row.endswith("1/1 ⟨f0 9f⟩ .741 ⟨99 82⟩ .990") for row in shown)
        assert any(row.endswith("'.' .951 ✓ stop") for row in shown)
        assert rows(FramesDocument(view, UNICODE), 34)[3].endswith("…")
        assert rows(FramesDocument(view, ASCII), 60)[0].split()[2] == "."

    def test_the_frame_of_the_token_is_marked(self, view: View) -> None:
        """Both ways: a click on a frame chooses its first token."""
        view.choose_token(2)
        document = FramesDocument(view, UNICODE)
        marked = [y for y, row in enumerate(rows(document, 60)) if row.startswith("▸")]
        assert marked == [view.state.tokens.frames[2]] == [document.anchor(60)]
        document.click(view.state.tokens.frames[0])
        assert view.token == 0

    def test_whole_frame_with_line_breaks(self, view: View) -> None:
        """Everything that was sent, the command first."""
        whole = FramesDocument(view, UNICODE).whole(view.state.tokens.frames[0])
        command, _, payload = indented(whole).partition(" ")
        assert command == "TOKEN"
        assert json.loads(payload)[0]["token"] == 7
        assert indented("no JSON") == "no JSON"


class TestTime:
    """When tokens came."""

    def test_figures(self, view: View) -> None:
        """The stream under the cursor, then all: percentiles of gaps between frames, tokens a frame, stalls."""
        shown = "\n".join(rows(TimeDocument(view, UNICODE), 70))
        for part in (
            "stream 1/1",
            "p50 100ms",
            "max 100ms",
            "ttft 200ms",
            "1.5 tokens/frame",
            "0 stalls",
            "all streams",
        ):
            assert part in shown

    def test_a_stall_stands_out(self) -> None:
        """A gap over 50 ms and four medians is a mark of its own."""
        times = [0.2, 0.21, 0.22, 0.23, 0.24, 1.24, 1.25, 1.26]
        view = view_of([request(0.1, 1), *(tokens(t, (1, 7, -0.1)) for t in times)])
        shown = rows(TimeDocument(view, UNICODE), 60)
        assert shown[1].index("▲") == 4
        assert "1 stall" in shown[2]
        assert "^" in text(spark_line(view, ASCII, 60))

    def test_one_token_has_no_gap(self) -> None:
        """That is said, in the pane and in the line."""
        view = view_of([request(0.1, 1), tokens(0.2, (1, 7, -0.1), (1, 8, -0.1))])
        assert "no gaps between frames yet" in "\n".join(rows(TimeDocument(view, UNICODE), 60))
        assert "no gaps" in text(spark_line(view, UNICODE, 60))
