"""The what-if pane: sliders over what was recorded, and where a seed would have left its path."""

from __future__ import annotations

import math

import pytest

from lmtool.core.logprobs.distribution import Distribution
from lmtool.core.logprobs.uniform import uniform
from lmtool.core.logprobs.what_if import Knobs, draw, what_if
from lmtool.terminal.tui.documents.what_if import PLACES, SCALES, WhatIfDocument, why_no_draws
from lmtool.terminal.tui.runs import length
from lmtool.terminal.tui.screens.dialogs import WhatIfScreen
from lmtool.terminal.tui.styles import ASCII, UNICODE
from tests.terminal.tui.scripted import event, request, watching
from tests.terminal.tui.states import asked, rows, view_of

SEED = 11
STEPS = [dict(zip(("5", "7", "8", "9", "13"), ps, strict=True)) for ps in (
    (0.48, 0.22, 0.15, 0.1, 0.05), (0.12, 0.6, 0.11, 0.09, 0.08), (0.31, 0.29, 0.2, 0.12, 0.08),
    (0.04, 0.06, 0.1, 0.2, 0.6),
    (0.21, 0.25, 0.19, 0.2, 0.15), (0.01, 0.9, 0.04, 0.03, 0.02),
)]  # fmt: skip
"""Distributions over a whole vocabulary of five tokens."""


def drawn(position: int, knobs: Knobs) -> int:
    """What the seed draws there."""
    top = sorted(((int(i), math.log(p)) for i, p in STEPS[position].items()), key=lambda pair: -pair[1])
    step = what_if(Distribution.of(top[0][0], top[0][1], top, 5), knobs, 5)
    assert step is not None
    token = draw(step, uniform(SEED, 2 + position)).token  # behind the prompt's two
    assert token is not None
    return token


def conversation(*, temperature: float = 1.0, honest: bool = True, **payload: object) -> list[object]:
    """A stream of an engine with this seed; honest: whether its tokens are those of the seed."""
    words = {"5": "Hi", "7": " the", "8": " fox", "9": ".", "13": " dog"}
    events = [
        event(0.0, "vocab", 0, words),
        event(0.1, "<", "MSG", [{"model_info": {"model": "tiny", "vocab_size": 5}}]),
        request(0.2, 1, top_logprobs=5, temperature=temperature, seed=SEED, **payload),
    ]
    for position, step in enumerate(STEPS):
        token = drawn(position, Knobs(temperature))
        if not honest and position == 2:
            token = next(int(i) for i in step if int(i) != token)
        logprobs = {i: math.log(p) for i, p in step.items()}
        entry = {"token": token, "stream_id": 1, "logprob": logprobs[str(token)], "finish_reason": None}
        events.append(event(0.3 + position / 10, "<", "TOKEN", [{**entry, "top_logprobs": logprobs}]))
    return events  # type: ignore[return-value] # events


def document(**more: object) -> WhatIfDocument:
    """The pane on that stream, all of it looked at."""
    view = view_of(conversation(**more))  # type: ignore[arg-type] # as above
    made = WhatIfDocument(view, view.state.streams[0], UNICODE)
    while made.advance(0.1):
        pass
    return made


class TestSliders:
    """Four parameters and their values."""

    def test_they_begin_as_recorded(self) -> None:
        """The request's own; what it did not say is its protocol's default."""
        assert document(temperature=0.8, top_p=0.9).knobs == Knobs(0.8, 0.9)
        view = view_of([asked(0.0, top_p=0.5), request(0.1, 1)])
        made = [WhatIfDocument(view, stream, UNICODE).recorded for stream in view.state.streams]
        assert made == [Knobs(1.0, 0.5), Knobs(0.0)]

    def test_steps_and_clicks(self) -> None:
        """Arrows go along the scale and stay on it, a click is a place on it, 0 is the recorded value again."""
        made = document()
        for slider in range(4):
            made.move(-9)
            made.move(slider)
            made.step(-99)
            assert made.values[slider] == SCALES[slider][0]
            made.step(99)
            assert made.values[slider] == SCALES[slider][-1]
            made.step(-1)
            assert made.values[slider] == SCALES[slider][-2]
            made.click(slider * (PLACES + 1) + 500)
            assert made.values[slider] == SCALES[slider][round((len(SCALES[slider]) - 1) / 2)]
        made.reset()
        assert made.knobs == made.recorded

    @pytest.mark.parametrize("columns", [40, 58, 76, 116, 156])
    def test_lines(self, columns: int) -> None:
        """At every width sliders, verdict and every alternative are there."""
        made = document()
        made.set_value(2, 2)
        shown = rows(made, columns)
        assert max(length(made.line(y, columns)) for y in range(len(shown))) <= columns
        for word in ("temperature", "top-p", "top-k", "min-p", "2 of 5 sent tokens stay", "exact", "cut", "' the'"):
            assert word in " ".join(" ".join(shown).split())
        plain = WhatIfDocument(made._view, made.stream, ASCII)
        assert all(line.isascii() for line in rows(plain, columns))


class TestDraws:
    """Where the seed would have gone."""

    def test_the_same_way(self) -> None:
        """Under its own parameters the stream is what it was."""
        made = document()
        assert made.no_draws == ""
        assert made.first_other() is None
        assert "the stream goes the same way" in " ".join(rows(made, 150))

    @pytest.mark.parametrize("knobs", [Knobs(0.0), Knobs(0.4), Knobs(1.0, 1.0, 2), Knobs(1.0, 0.5), Knobs(2.0)])
    def test_the_first_other_token(self, knobs: Knobs) -> None:
        """It is the first at which these parameters draw another one."""
        made = document()
        made.knobs = knobs
        made._steps = []
        while made.advance(0.1):
            pass
        other = [i for i in range(len(STEPS)) if drawn(i, knobs) != drawn(i, Knobs())]
        assert made.first_other() == (other[0] if other else None)
        if other:
            assert f"first other token of the stream: #{other[0]}" in " ".join(rows(made, 150))

    def test_a_server_that_draws_in_another_way(self) -> None:
        """Is found out by its own tokens, and nothing is said of draws."""
        made = document(honest=False)
        assert "draws in another way: its token #2" in made.no_draws
        assert "draws are not known" in " ".join(rows(made, 150))

    @pytest.mark.parametrize(
        ("payload", "reason"),
        [
            ({"seed": None}, "no seed"), ({"repetition_penalty": 1.1}, "repetition_penalty"),
            ({"min_tokens": 3}, "min_tokens"),
            ({"presence_penalty": 0.5}, "presence_penalty"), ({"repetition_penalty": 1.0, "min_tokens": 0}, ""),
            ({"logprobs_mode": "processed", "top_p": 0.5}, "after temperature"),
            ({"logprobs_mode": "raw", "constraint": {"regex": "a"}}, "logprobs_mode=biased"),
            ({"prompt": "Hi"}, "how many tokens the prompt has"),
        ],
    )  # fmt: skip
    def test_why_not(self, payload: dict[str, object], reason: str) -> None:
        """What is not in the recorded numbers is named, and no draw is told."""
        view = view_of([request(0.1, 1, **{"temperature": 1.0, "seed": 3, **payload})])
        made = WhatIfDocument(view, view.state.streams[0], UNICODE)
        assert reason in made.no_draws
        assert bool(made.no_draws) is bool(reason)

    def test_http(self) -> None:
        """Over HTTP tokens have no ids: who stays is known, draws are not."""
        view = view_of([asked(0.0, seed=3)])
        assert "without ids" in why_no_draws(view.state.streams[0])


class TestScreen:
    """The pane on the screen."""

    @pytest.mark.parametrize("size", [(160, 45), (60, 20)])
    async def test_keys_and_drags(self, size: tuple[int, int]) -> None:
        """Arrows and the mouse move sliders, f goes to the first other token, 0 back; esc closes."""
        async with watching(conversation(), size=size) as seen:  # type: ignore[arg-type] # as above
            await seen.press("2", "W")
            screen = seen.app.screen
            assert isinstance(screen, WhatIfScreen)
            assert "What if: 1/1 #5" in seen.text()
            assert "the stream goes the same way" in " ".join(seen.text().split())
            await seen.press("H", "H", "H", "H", "n", "N")
            assert screen.document.knobs.temperature == 0.0
            for _ in range(100):
                if screen.document.first_other() is not None:
                    break
                await seen.pilot.pause(0.02)
            await seen.press("f")
            assert seen.app.view.position(seen.app.view.token or 0) == screen.document.first_other()
            await seen.press("0", "down", "left")
            assert screen.document.knobs == Knobs(1.0, 0.98)
            await seen.pilot.mouse_down(screen.pane, offset=(25, 0))
            await seen.pilot.hover(screen.pane, offset=(30, 0))
            await seen.pilot.mouse_up(screen.pane, offset=(30, 0))
            assert screen.document.knobs.temperature != 1.0
            await seen.press("escape")
            assert seen.app.screen is seen.app.main

    async def test_without_tokens(self) -> None:
        """There is nothing to ask of."""
        async with watching([]) as seen:
            await seen.press("W")
            assert "no token yet" in seen.text()
