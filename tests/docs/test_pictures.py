"""The pictures of README show what the program draws today."""

from __future__ import annotations

import asyncio
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

import pytest

from tests.docs.examples import PAGES
from tests.docs.pictures import FOLDER, PICTURES, REDRAW, draw


@pytest.fixture(scope="module")
def drawn(embedded: str) -> Mapping[str, str]:
    """All pictures as they are drawn now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        return asyncio.run(draw(embedded))


def words(svg: str) -> list[str]:
    """What stands in a picture, line by line."""
    return [text for one in ET.fromstring(svg).iter() if one.tag.endswith("}text") and (text := one.text)]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str, drawn: Mapping[str, str]) -> None:
    """From the same seeds the same picture is drawn as the repository has, to the last character."""
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    if kept == drawn[name]:
        return
    before, now = words(kept), words(drawn[name])
    changed = [f"{a!r} is now {b!r}" for a, b in zip(before, now, strict=False) if a != b] or ["its colours or sizes"]
    pytest.fail(f"recordings/{name}.svg is out of date; draw it anew:  {REDRAW}\n" + "\n".join(changed[:5]))


def test_every_picture_is_drawn_by_the_command() -> None:
    """README and manual show no other pictures, and all of these; none loads anything from elsewhere."""
    shown = {
        image for page in PAGES for image in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == {f"recordings/{name}.svg" for name in PICTURES}
    for name in PICTURES:
        text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*[\"']?https?:|@import", text)
