"""JSON texts and the styles that write them again."""

from __future__ import annotations

import pytest
from hypothesis import given

from lmtool.trace import styles
from tests.trace.strategies import style, values


@given(values, style)
def test_what_a_style_writes_is_read_in_a_style(value: object, name: styles.Style) -> None:
    """A text written in a style is read to a value that writes the same text again."""
    written = styles.write(value, name)
    found = styles.read(written, name)
    assert found is not None
    assert styles.write(*found) == written
    assert found[1] == name


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("py", r'{"a": [1, 2.0], "\u00e9": "\ud83d\ude42 \u007f / \" \\ \b\f\n\r\t \u001f"}'),
        ("compact", '{"a":[1,2.0],"é":"🙂 \x7f / \\" \\\\ \\b\\f\\n\\r\\t \\u001f","f":1e-05}'),
        ("msgspec", '{"a":[1,2.0],"é":"🙂 \x7f / \\" \\\\ \\b\\f\\n\\r\\t \\u001f","f":0.00001}'),
        ("py", "[0.0001, 1e-05, 1000000000000000.0, 1e+16, -0.0, 123456789012345678901234567890]"),
        ("msgspec", "[0.00001,1e-6,1000000000000000.0,1e16,-0.0,1.5e-7,123456789012345678901234567890]"),
    ],
)
def test_each_style_spells_as_documented(name: styles.Style, written: str) -> None:
    """FORMAT.md, Styles: separators, escapes and floats of each name."""
    found = styles.read(written, "py")
    assert found is not None
    assert found[1] == name


@pytest.mark.parametrize(
    "text",
    [
        '{"logprob": -Infinity}',
        "[NaN]",
        '{"a": 1, "a": 2}',
        '{"a" : 1}',
        " {}",
        "{} ",
        "1E5",
        "[1.50]",
        "1e400",
        r'"\ud800"',
        "",
        "{",
        "[" * 100_000,
        "[1,2, 3]",
    ],
)
def test_what_no_style_writes_is_told(text: str) -> None:
    """A text that cannot be written again byte for byte has no style: it must be kept as it is."""
    assert styles.read(text, "py") is None


@pytest.mark.parametrize("name", styles.STYLES)
def test_the_preferred_style_wins(name: styles.Style) -> None:
    """A text that several styles write is given the preferred one."""
    assert styles.read('{"a":1}' if name != "py" else '{"a": 1}', name) == ({"a": 1}, name)
    assert styles.read("[]", name) == ([], name)


def test_names() -> None:
    """Only the documented names are styles."""
    assert styles.named("compact") == "compact"
    assert styles.named("js") is None
    assert styles.named(None) is None
