"""Streams of traces as one picture, and the colours of pages and pictures on light and dark grounds."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from rich.cells import cell_len

from lmtool.core.errors import UsageError
from lmtool.trace import page as pages
from lmtool.trace.events import Frame, JsonText
from lmtool.trace.page import BESIDE, SINGLE, Lines, Page, draw, on_both_grounds, rgb, scale
from tests.trace.test_page import VOCAB, answer, made, request

SVG = "{http://www.w3.org/2000/svg}"


def picture(*events: object, **more: object) -> ET.Element:
    """The picture of these events; XML that can be read."""
    page = Page(**more)  # type: ignore[arg-type]
    page.read([VOCAB, *events])  # type: ignore[list-item]
    return ET.fromstring(draw(page))


def texts(drawn: ET.Element) -> list[str]:
    """What stands in it, in order, without what pointing at it shows."""
    return ["".join(one.itertext()).removeprefix(one.findtext(f"{SVG}title") or "") for one in drawn.iter(f"{SVG}text")]


def luminance(color: str) -> float:
    """How light a colour is, 0 to 1, roughly."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return float(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2)


class TestPicture:
    """What a picture has of a page."""

    def test_one_stream(self) -> None:
        """Title, counts, legend, prompt, tokens with their looks and alternatives, the end: as the page has them."""
        events = (request(1), *answer(1, (1, -0.01), (3, -4.0)))
        drawn, page = picture(*events), made(*events)
        title = drawn.findtext(f"{SVG}title")
        assert title == "Say <hi> & go"
        shown = texts(drawn)
        assert shown[0] == title
        assert shown[1] == "1 stream · 2 tokens"
        labels = re.findall(r'<span class="h\d">([^<]+)</span>', page)
        assert [text.strip() for text in shown[2:11]] == ["prob", *(label.replace("&lt;", "<") for label in labels)]
        assert shown[11:] == ["1/1 m", title, "<b>", '"quoted"', "2 tokens · stop · perplexity 7.4"]
        rare = next(one for one in drawn.iter(f"{SVG}text") if '"quoted"' in "".join(one.itertext()))
        assert rare.get("class") == "h6"
        about = rare.findtext(f"{SVG}title")
        assert about is not None
        assert about.startswith("token 2 · id 3 · p .018 · 5.8 bits\n")
        assert float(drawn.get("width", 0)) == pytest.approx((SINGLE + 4) * 8.43, abs=1)

    def test_two_streams(self) -> None:
        """Side by side, with the first difference marked in both; a third one goes below."""
        events = [request(1), request(2), *answer(1, (1, -1.0), (2, -1.0)), *answer(2, (1, -1.0), (3, -1.0))]
        drawn = picture(*events)
        assert "2 streams · 4 tokens · equal for 1 tokens" in texts(drawn)
        marks = [one for one in drawn.iter(f"{SVG}rect") if one.get("fill") == "#d03080"]
        assert len(marks) == 3  # and in the legend
        names = {text: one for one, text in zip(drawn.iter(f"{SVG}text"), texts(drawn), strict=True)}
        assert names["1/1 m"].get("y") == names["1/2 m"].get("y")
        assert float(names["1/2 m"].get("x", 0)) > BESIDE * 8.43
        drawn = picture(*events, request(3), *answer(3, (1, -1.0)))
        names = {text: one for one, text in zip(drawn.iter(f"{SVG}text"), texts(drawn), strict=True)}
        assert float(names["1/3 m"].get("y", 0)) > float(names["1/2 m"].get("y", 0))
        assert "first difference" not in names

    def test_nothing_of_a_model_is_markup(self) -> None:
        """Texts are shown, and nothing is loaded from elsewhere."""
        page = Page()
        page.read([VOCAB, request(1, "</text><script>"), *answer(1, (9, -1.0), (2, -1.0))])
        text = draw(page)
        assert "<script" not in text
        assert "\x1b" not in text
        assert not re.search(r"href|@import|url\(|https?:(?!//www\.w3\.org/2000/svg)", text)

    def test_thoughts(self) -> None:
        """A thought's tokens have its colours and are italic."""
        thought = {"stream_id": 1, "token": 2, "logprob": -4.0, "text": "", "reasoning": "Hm", "finish_reason": None}
        drawn = picture(request(1), Frame(1, "<", 1, JsonText("TOKEN", [thought], "py")), *answer(1, (1, -0.01)))
        (ground,) = (one for one in drawn.iter(f"{SVG}rect") if one.get("class") == "h6 thought")
        assert ground.get("fill") == scale(light=True, is_thought=True)[6][1]
        assert ".thought { font-style: italic }" in (drawn.findtext(f"{SVG}style") or "")

    def test_lines(self) -> None:
        """Tokens that do not fit go to the next line whole, longer ones are cut; line feeds end lines."""
        lines = Lines(10)
        for text in ("four", " more", " words", "\n", "漢字漢字漢字", "x" * 23):
            lines.add(text)
        drawn = ["".join(piece.text for piece in line) for line in lines.lines]
        assert drawn == ["four more", " words", "漢字漢字漢", "字", "x" * 10, "x" * 10, "xxx"]
        assert max(map(cell_len, drawn)) <= 10

    def test_long_prompts_and_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A long prompt is cut with a sign; too many tokens are refused with what to do."""
        drawn = picture(request(1, "word " * 700), *answer(1, (1, -1.0)))
        assert texts(drawn).count("…") == 1
        assert float(drawn.get("height", 0)) < 500
        monkeypatch.setattr(pages, "MAX_PICTURE_TOKENS", 1)
        with pytest.raises(UsageError, match="2 tokens are too many for one picture") as refused:
            picture(request(1), *answer(1, (1, -1.0), (2, -1.0)))
        assert "or write a page:  --to html" in refused.value.hints


class TestColors:
    """On every ground the unlikely stands out."""

    @pytest.mark.parametrize("thought", [False, True])
    @pytest.mark.parametrize(("light", "ground"), [(True, "#ffffff"), (False, "#121212")])
    def test_the_unlikely_stands_out(self, light: bool, ground: str, thought: bool) -> None:
        """The likeliest step is the nearest to the ground, the least likely one far from it; all can be read."""
        steps = scale(light=light, is_thought=thought)
        distances = [abs(luminance(color) - luminance(ground)) for _, color in steps]
        assert min(distances) == distances[0]
        assert min(distances[5:]) > max(distances[:2])
        for ink, color in steps:
            high, low = sorted((luminance(ink), luminance(color)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5

    def test_pages_and_pictures_have_both(self) -> None:
        """Those of the light ground, and those of the dark one where the reader prefers it."""
        light, dark = on_both_grounds("i{name} {{ {ink} {ground} }}").split("@media (prefers-color-scheme: dark)")
        for rules, is_light in ((light, True), (dark, False)):
            for step, (ink, ground) in enumerate(scale(light=is_light)):
                assert f"i.h{step} {{ {ink} {ground} }}" in rules
        assert "prefers-color-scheme: dark" in made(request(1), *answer(1, (1, -1.0)))
        drawn = picture(request(1), *answer(1, (1, -9.0)))
        token = next(one for one in drawn.iter(f"{SVG}rect") if one.get("class") == "h7" and one.get("y") != "60")
        assert token.get("fill") == scale(light=True)[7][1]
        assert f"rect.h7 {{ fill: {scale(light=False)[7][1]} }}" in (drawn.findtext(f"{SVG}style") or "")

    def test_numbers(self) -> None:
        """Of the cube of 256 colours, and of its greys."""
        assert [rgb(number) for number in (16, 231, 208, 232, 255)] == [
            "#000000", "#ffffff", "#ff8700", "#080808", "#eeeeee",
        ]  # fmt: skip
