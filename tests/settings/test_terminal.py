"""What reaches a terminal or a pipe."""

from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.settings.terminal import Output, PassingNote, visible, wants_color


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@given(st.text())
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    """Escape sequences in a model's output are an attack: only line feed and tab pass."""
    shown = visible(text)
    assert not any((ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in shown)


def test_every_format_character_is_visible() -> None:
    """Controls, formats, separators, half surrogate pairs: all of Unicode's, behind a letter."""
    hidden = [
        chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
    assert [f"U+{ord(c):04X}" for c in hidden if c not in "\n\t" and visible(f"a{c}") != f"a⟨{ord(c):02x}⟩"] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 🙂 text\n", "plain 🙂 text\n"),
        ("\x1b[31mred", "⟨1b⟩[31mred"),
        ("bell\x07", "bell⟨07⟩"),
        ("dos\r\nline", "dos\nline"),
        ("over\rwrite", "over⟨0d⟩write"),
        ("abc\u202edef", "abc⟨202e⟩def"),
        ("a\u200bb\u200fc\u2028d\u2029e", "a⟨200b⟩b⟨200f⟩c⟨2028⟩d⟨2029⟩e"),
        ("\ufeffa\u00adb\u2060c\U000e0041\U000e0100", "⟨feff⟩a⟨ad⟩b⟨2060⟩c⟨e0041⟩⟨e0100⟩"),
        ("a\u200db\ufe0fc", "a⟨200d⟩b⟨fe0f⟩c"),
        ("🙂\ufe0f\ufe0f\u200d\u200d", "🙂\ufe0f⟨fe0f⟩⟨200d⟩⟨200d⟩"),
        ("👩\u200d👩\u200d👧 ❤\ufe0f\u200d🔥 1\ufe0f\u20e3", "👩\u200d👩\u200d👧 ❤\ufe0f\u200d🔥 1\ufe0f\u20e3"),
        ("می\u200cشود", "می\u200cشود"),
        ("\u200d👧", "\u200d👧"),
        ("\ud800\u115f\u3164", "⟨d800⟩⟨115f⟩⟨3164⟩"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    """Controls are named by their code; everything printable is left alone."""
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("when", "environment", "terminal", "expected"),
    [
        (None, {}, True, True),
        (None, {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        (None, {"TERM": "dumb"}, True, False),
        (None, {"FORCE_COLOR": "1"}, False, True),
        (None, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour_is_decided_by_option_then_environment_then_terminal(
    monkeypatch: pytest.MonkeyPatch, when: str | None, environment: dict[str, str], terminal: bool, expected: bool
) -> None:
    """--color, then NO_COLOR, then FORCE_COLOR, then a capable terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    assert wants_color(stream, when) is expected  # type: ignore[arg-type] # the table holds plain strings


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Text for another program is not altered."""
    Output(color=False, note_color=False, terminal=False).write("a\x1bb\r\n")
    assert capsys.readouterr().out == "a\x1bb\r\n"


def test_quiet_silences_notes_but_not_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """-q: no notes on stderr."""
    out = Output(color=False, note_color=False, terminal=False, quiet=True)
    out.note("loading")
    out.warn("no authentication")
    assert capsys.readouterr().err == "warning: no authentication\n"


class TestPassingNote:
    """A note that goes away."""

    def test_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It stands behind the cursor, which stays; control characters in it are visible; it is erased once."""
        monkeypatch.setattr("sys.stderr", screen := Terminal())
        monkeypatch.setenv("TERM", "xterm")
        note = PassingNote(Output(color=True, note_color=True, terminal=True))
        note.clear()
        note.show("place 1\x1b[2J")
        assert screen.getvalue() == "\x1b7\x1b[K\x1b[?7l \x1b[2mplace 1⟨1b⟩[2J\x1b[0m\x1b[?7h\x1b8"
        note.clear()
        note.clear()
        assert screen.getvalue().endswith("\x1b8\x1b[K")

    @pytest.mark.parametrize(("quiet", "stream"), [(True, Terminal()), (False, io.StringIO())])
    def test_elsewhere(self, monkeypatch: pytest.MonkeyPatch, quiet: bool, stream: io.StringIO) -> None:
        """Nothing is written to a file, nor where quiet is asked for."""
        monkeypatch.setattr("sys.stderr", stream)
        note = PassingNote(Output(color=True, note_color=True, terminal=True, quiet=quiet))
        note.show("place 1")
        note.clear()
        assert stream.getvalue() == ""


@pytest.mark.parametrize("together", [True, False])
def test_a_note_begins_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, together: bool) -> None:
    """Where stdout and stderr go to the same place, a note does not continue the text; else that is as it is."""
    texts, notes = tmp_path / "out", tmp_path / ("out" if together else "err")
    with texts.open("a") as stdout, notes.open("a") as stderr:
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.stderr", stderr)
        out = Output(color=True, note_color=False, terminal=False)
        out.write_styled("Once", "1")
        out.note("one")
        out.note("two")
        out.write(" upon\n")
        out.warn("three")
    expected = "\x1b[1mOnce\x1b[0m\none\ntwo\n upon\nwarning: three\n"
    assert texts.read_text() == (expected if together else "\x1b[1mOnce\x1b[0m upon\n")
