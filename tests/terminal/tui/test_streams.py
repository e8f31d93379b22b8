"""Streams and columns."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.protocol.providers.answer_reader import api_of
from lmtool.terminal.tui.columns import IN, FrameLog, TokenLog
from lmtool.terminal.tui.streams import (
    PROMPT_CHARACTERS,
    PROMPT_TOKENS,
    WINDOW,
    Digest,
    digest,
    parameters,
    stream_of,
    timing_of,
    timing_of_all,
)
from lmtool.trace.events import Frame, JsonText
from lmtool.trace.stream_events import RequestStarted
from tests.terminal.tui.states import fed
from tests.trace.conftest import generate, token, tokens


def asked(kind: str = "GENERATE", **payload: object) -> RequestStarted:
    """A request."""
    method, _, path = kind.partition(" ")
    return RequestStarted(0.5, 1, "1/3", kind, payload, api_of(method, path))


class TestStreams:
    """Phases, perplexity and timing of streams, for any moment."""

    @pytest.mark.parametrize(
        ("reason", "phase"),
        [
            ("stop", "stop"),
            ("length", "length"),
            ("cancelled", "cancelled"),
            ("content_filter", "stop"),
            ("error", "error"),
        ],
    )
    def test_phases(self, reason: str, phase: str) -> None:
        """Waiting until the first token, running until the end; then how it ended."""
        state = fed(generate(0.1), tokens(0.5, token(1)), tokens(1.0, token(2) | {"finish_reason": reason}))
        stream = state.streams[0]
        told = [stream.phase(moment, state.tokens_at(moment)) for moment in (0.2, 0.5, 0.9, 1.0, 5.0)]
        assert told == ["waiting", "running", "running", phase, phase]

    def test_what_holds_it_up(self) -> None:
        """What the server said last, until a token comes; that it shuts down holds on."""

        def said(time: float, **entry: object) -> Frame:
            return Frame(time, "<", 1, JsonText("MSG", [{"stream_id": 1, **entry}], "py"))

        load = {"model": "m", "total_bytes": 200, "done_bytes": 50, "message": ""}
        state = fed(
            generate(0.1),
            said(0.2, progress={**load, "phase": "unloading"}),
            said(0.3, progress={**load, "phase": "loading"}),
            said(0.4, progress={**load, "phase": "ready"}),
            said(0.5, system={"kind": "queued", "message": "", "place": 3}),
            said(0.6, system={"kind": "queued", "message": "", "place": 1, "seconds": 4.2}),
            tokens(0.7, token(1)),
            said(0.8, system={"kind": "slow", "message": "", "seconds": 2.0}),
            said(0.9, system=5),
            said(1.0, stream_id=[7], system={"kind": "slow"}),
            said(1.1, system={"kind": "draining", "message": "", "seconds": 30}),
            tokens(1.2, token(2)),
        )
        stream = state.streams[0]
        moments = [(0.15, -1.0), (0.25, -1.0), (0.35, -1.0), (0.45, -1.0), (0.55, -1.0), (0.65, -1.0)]
        shown = [stream.held_up(moment, came) for moment, came in [*moments, (0.75, 0.7), (0.95, 0.7), (1.3, 1.2)]]
        words = ["", "unloading", "loading 25%", "", "place 3", "place 1 4s", "", "slow 2s", "draining 30s"]
        assert shown == words

    def test_only_the_first_ending_counts(self) -> None:
        """What comes after the first ending is not believed."""
        stream = fed(generate(0.1)).streams[0]
        stream.end(1.0, "stop", None)
        stream.end(2.0, None, "late")
        assert (stream.ended, stream.finish_reason, stream.error) == (1.0, "stop", None)

    @given(st.lists(st.floats(-20, 0), min_size=1, max_size=10), st.lists(st.integers(1, 10), max_size=4))
    def test_perplexity(self, logprobs: list[float], asked: list[int]) -> None:
        """The exponential of the mean surprisal of the first tokens, asked in any order."""
        state = fed(generate(0.0), *[tokens(0.1, token(1, logprob=p)) for p in logprobs])
        for count in [*asked, len(logprobs)]:
            if count <= len(logprobs):
                expected = math.exp(-math.fsum(logprobs[:count]) / count)
                assert state.streams[0].perplexity(count) == pytest.approx(expected, rel=1e-5)

    def test_perplexity_without_logprobs(self) -> None:
        """Tokens without a logprob are left out; without any that has one it is not known."""
        state = fed(generate(0.0), tokens(0.1, token(1, logprob=-1.0), token(2) | {"logprob": None}, token(3)))
        stream = state.streams[0]
        assert [stream.perplexity(count) for count in range(4)] == [
            None,
            *[pytest.approx(math.e)] * 2,
            pytest.approx(math.exp(0.75)),
        ]

    def test_perplexity_beyond_all_floats(self) -> None:
        """A surprisal that no float can be raised to is infinite."""
        assert fed(generate(0.0), tokens(0.1, token(1, logprob=-1e9))).streams[0].perplexity(1) == math.inf

    def test_timing_is_told_by_frame(self) -> None:
        """Tokens of one frame arrived together: gaps are between frames, and the rate leaves out the first frame."""
        state = fed(
            generate(1.0),
            tokens(1.5, token(1), token(2)),
            tokens(1.6, token(3)),
            tokens(1.8, token(4), token(5), token(6, 9)),
        )
        timing = timing_of(state.streams[0], 5, state.tokens, state.frames)
        assert timing.ttft == pytest.approx(0.5)
        assert timing.gaps == pytest.approx((0.1, 0.2))
        assert timing.per_frame == pytest.approx(5 / 3)
        assert timing.rate == pytest.approx(3 / 0.3)
        assert timing.gap(0.5) == pytest.approx(0.1)
        assert timing.gap(0.99) == pytest.approx(0.2)

    def test_timing_of_a_moment(self) -> None:
        """Only tokens seen so far count."""
        state = fed(generate(0.0), *[tokens(0.1 * i, token(1)) for i in range(1, 6)])
        stream = state.streams[0]
        assert timing_of(stream, 0, state.tokens, state.frames).ttft is None
        assert timing_of(stream, 1, state.tokens, state.frames).gaps == ()
        assert len(timing_of(stream, 3, state.tokens, state.frames).gaps) == 2
        assert len(timing_of_all(4, state.tokens, state.frames).gaps) == 3
        assert timing_of_all(0, state.tokens, state.frames).rate is None

    def test_stalls_stand_out(self) -> None:
        """A gap over four times the median and over 50 ms is a stall."""
        moments = [0.01 * i for i in range(1, 20)]
        state = fed(generate(0.0), *[tokens(m if m < 0.1 else m + 0.3, token(1)) for m in moments])
        timing = timing_of(state.streams[0], 19, state.tokens, state.frames)
        assert timing.stalls == (8,)
        quick = fed(generate(0.0), *[tokens(m / 10 if m < 0.1 else m / 10 + 0.02, token(1)) for m in moments])
        assert timing_of(quick.streams[0], 19, quick.tokens, quick.frames).stalls == ()

    def test_old_arrivals_are_left_out(self) -> None:
        """Gaps are those of the last arrivals, so that looking at a long stream stays quick."""
        state = fed(generate(0.0), *[tokens(i / 100, token(1)) for i in range(WINDOW + 50)])
        assert len(timing_of(state.streams[0], WINDOW + 50, state.tokens, state.frames).gaps) == WINDOW - 1
        assert len(timing_of_all(WINDOW + 50, state.tokens, state.frames).gaps) == WINDOW - 1


class TestFrames:
    """Columns of frames."""

    @given(st.lists(st.lists(st.floats(0, 100), max_size=4), max_size=5))
    def test_times_never_fall(self, groups: list[list[float]]) -> None:
        """A time before the last one's counts as the last one's, so that moments can be looked up."""
        log = FrameLog()
        for times in groups:
            log.extend(times, range(len(times)), [1] * len(times), IN, [0] * len(times))
        given_ = [time for times in groups for time in times]
        assert log.times.tolist() == [max(given_[: i + 1]) for i in range(len(given_))]
        assert log.end == max([*given_, 0.0])

    def test_until_a_moment(self) -> None:
        """An event is seen from its own time on."""
        log = FrameLog()
        log.extend([1.0, 2.0, 2.0], range(3), [1, 1, 1], IN, [0, 0, 0])
        assert [log.until(moment) for moment in (0.5, 1.0, 1.5, 2.0, 9.0)] == [0, 1, 1, 3, 3]


class TestTokens:
    """Columns of tokens."""

    def test_rows_in_order_of_arrival(self) -> None:
        """A row a token; a logprob that was not told is None, others keep the precision of a float32."""
        log = TokenLog()
        log.extend([0, 1], [5, -2], [-0.1, float("nan")], [3, 3])
        log.extend((0,), (7,), (-12.5,), (4,))
        assert len(log) == 3
        assert (log.streams.tolist(), log.ids.tolist(), log.frames.tolist()) == ([0, 1, 0], [5, -2, 7], [3, 3, 4])
        assert [log.logprob(row) is None for row in range(3)] == [False, True, False]
        assert abs((log.logprob(0) or 0) + 0.1) < 1e-7
        assert log.logprob(2) == -12.5


class TestRequestSummary:
    """What is kept of a request."""

    def test_fields_of_a_stream(self) -> None:
        """Small fields stay as they are; the prompt, the bias and what names the stream have places of their own."""
        began = asked(
            model="m", prompt=[1, 2], stream_id=3, max_tokens=7, temperature=0.5, logit_bias={"1": -100, "2": 3}
        )
        stream = stream_of(began, 4, 0, 9, {})
        assert (stream.index, stream.label, stream.connection, stream.frame, stream.started_at) == (4, "1/3", 1, 9, 0.5)
        assert (stream.kind, stream.model, stream.prompt, stream.prompt_tokens, stream.max_tokens) == (
            "GEN",
            "m",
            (1, 2),
            2,
            7,
        )
        assert (stream.biased, stream.ruled_out, stream.payload) == (2, 1, {"max_tokens": 7, "temperature": 0.5})

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("abc", Digest(3, "abc")),
            ([1, 2], Digest(2, (1, 2))),
            (list(range(1000)), Digest(1000, tuple(range(1000 - PROMPT_TOKENS, 1000)))),
            ("x" * 9999, Digest(9999, "x" * PROMPT_CHARACTERS)),
            ([{"role": "user", "content": "Hi"}], Digest(1, "Hi")),
            ([{"content": [{"type": "text", "text": "H"}, {"type": "image"}, 5, {"text": "i"}]}], Digest(1, "Hi")),
            ([{"role": "user"}], Digest(1, "")),
            ([None], Digest(1, "")),
            ([], Digest(0, ())),
            ({"5": -100.5, "6": True, "7": "x", "8": -99}, Digest(4, "", 1)),
            (None, Digest(0)),
            (7, Digest(0)),
        ],
    )  # fmt: skip
    def test_large_values(self, value: object, expected: Digest) -> None:
        """Of a large value its size and its end are kept."""
        assert digest(value) == expected

    def test_references(self) -> None:
        """A value that stands in a blob is told from it; one that no blob gives is empty."""
        began = asked(prompt={"$blob": "a"}, logit_bias={"$blob": "b"})
        stream = stream_of(began, 0, 0, 0, {"a": Digest(9, (8, 9))})
        assert (stream.prompt, stream.prompt_tokens, stream.biased) == ((8, 9), 9, 0)

    def test_redacted_prompts(self) -> None:
        """Of a redacted prompt only the length is known."""
        stream = stream_of(asked(prompt={"$redacted": "prompt", "n": 12, "sha256": "x"}), 0, 0, 0, {})
        assert (stream.prompt, stream.prompt_tokens) == ("", 12)

    @pytest.mark.parametrize(
        ("began", "expected"),
        [
            (asked(), 32),
            (asked(max_tokens="x"), None),
            (asked("SCORE", scored=[1, 2, 3]), 3),
            (asked("SCORE", scored="text"), None),
            (asked("POST /v1/chat/completions", max_completion_tokens=5), 5),
            (asked("POST /v1/completions"), None),
            (asked("POST /v1/responses", max_output_tokens=6), 6),
        ],
    )
    def test_how_many_tokens_there_may_be(self, began: RequestStarted, expected: int | None) -> None:
        """LMTP, GEN-2: 32 where a GENERATE does not say; a SCORE has as many as it was given."""
        assert stream_of(began, 0, 0, 0, {}).max_tokens == expected

    def test_kinds(self) -> None:
        """LMTP's commands, and chats apart from completions of text."""
        paths = ["/v1/chat/completions", "/v1/responses", "/messages", "/v1/completions", "/api/generate"]
        kinds = ["GENERATE", "SCORE", *(f"POST {path}" for path in paths), "GET /v1/models"]
        found = [stream_of(asked(kind), 0, 0, 0, {}).kind for kind in kinds]
        assert found == ["GEN", "SCORE", "CHAT", "CHAT", "CHAT", "TEXT", "TEXT", ""]

    @pytest.mark.parametrize(
        ("payload", "expected"),
        [
            ({"constraint": {"json": {}}}, "json"),
            ({"response_format": {"type": "json_object"}}, "json_object"),
            ({"response_format": {"type": "text"}, "guided_regex": "a"}, "regex"),
            ({"structured_outputs": {}}, "structured_outputs"),
            ({"constraint": None}, None),
        ],
    )
    def test_constraints(self, payload: dict[str, object], expected: str | None) -> None:
        """What kind of constraint holds a stream; `text` is none."""
        assert stream_of(asked(**payload), 0, 0, 0, {}).constraint == expected

    def test_a_few_words(self) -> None:
        """Parameters in short; a dash where there are none."""
        assert parameters({"temperature": 0.7, "seed": 4, "max_tokens": 3}, 10, "regex") == "t=.7 seed=4 bias 10 regex"
        assert parameters({"top_p": 1, "temperature": "hot"}, 0, None) == "p=1 t=hot"
        assert parameters({}, 0, None) == "-"
