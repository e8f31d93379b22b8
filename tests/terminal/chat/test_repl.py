"""A conversation, on a terminal of its own, with a real server and a real model."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 30.0
STEP = re.compile(r"\x1b\[(?P<argument>\??[0-9;]*)(?P<control>[A-Za-z])|(?P<text>[^\x1b])", re.DOTALL)
START = "Once upon a time"
LAUNCH = (
    "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "runpy.run_module('lmtool', run_name='__main__')"
)
"""Runs lmtool with stdin as the controlling terminal of its session, which Ctrl-C needs."""


class Terminal:
    """A program on a pseudo-terminal: what it shows can be waited for, keys can be typed."""

    def __init__(self, controller: int, process: subprocess.Popen[bytes]) -> None:
        self._controller = controller
        self.process = process
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        """Everything written so far."""

    @property
    def shown(self) -> str:
        """What a terminal of endless height shows now."""
        rows, row, column = [""], 0, 0
        for argument, control, text in STEP.findall(self.raw):
            if control == "A":
                row -= int(argument or 1)
            elif control in {"C", "D"}:
                column += int(argument or 1) * (1 if control == "C" else -1)
            elif control in {"J", "K"}:
                rows[row] = rows[row][:column]
                if control == "J":
                    del rows[row + 1 :]
            elif text == "\r":
                column = 0
            elif text == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif text:
                rows[row] = rows[row].ljust(column)[:column] + text + rows[row][column + 1 :]
                column += 1
        return "\n".join(line.rstrip() for line in rows)

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._controller, keys.encode())

    def expect(self, pattern: str) -> None:
        """Wait until the pattern is on the screen."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, self.shown):
            assert self._more(deadline), f"{pattern!r} was not shown:\n{self.shown}"

    def end(self) -> int:
        """Wait for the end of the program; returns its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._more(deadline):
            pass
        return self.process.wait(PATIENCE)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, as a user would with the mouse."""
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        """Return the terminal's modes."""
        return list(termios.tcgetattr(self._controller))

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._controller], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._controller, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self.raw += self._decoder.decode(data)
        return bool(data)


@contextmanager
def terminal(
    *words: str, columns: int = 80, rows: int = 24, stdout: int | None = None, **env: str
) -> Iterator[Terminal]:
    """Start lmtool on a terminal of this size, whatever the test run's own says. stdout: another place for it."""
    controller, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *words],
        stdin=side,
        stdout=side if stdout is None else stdout,
        stderr=side,
        env={**inherited, "TERM": "xterm-256color", **env},
        start_new_session=True,
    )
    os.close(side)
    made = Terminal(controller, process)
    try:
        yield made
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(controller)


def test_conversation(served: str) -> None:
    """A prompt is answered above the line for typing; the terminal is given back as it was found."""
    with terminal("chat", "-e", served) as screen:
        before = screen.modes()
        screen.expect(r"stories260K .*Ctrl-D leaves\n1>")
        assert screen.modes() != before
        screen.type(f"{START} max_tokens=8\r")
        screen.expect(r"1> Once upon a time max_tokens=8\n, there was a little girl\n\(cut at 8 tokens.*\)\n2>")
        screen.type("\x04")
        assert screen.end() == 0
        assert screen.modes() == before
        assert screen.shown.endswith(")\n")
        assert screen.raw.count("\x1b[?2004h") == screen.raw.count("\x1b[?2004l") > 0, "pastes are marked no longer"


def test_several_prompts_in_flight(served: str) -> None:
    """The next prompt can be sent while an answer runs: both are shown, line by line, with their numbers."""
    with terminal("chat", "-e", served, "-o", "ignore_eos=true", "-n", "200") as screen:
        screen.expect(r"1>")
        screen.type(f"{START}\rThe dog\r")
        screen.expect(r"(?s)1│ \(cut at 200 tokens.*2│ \(cut at 200 tokens|2│ \(cut.*1│ \(cut")
        assert "1> Once upon a time\n" in screen.shown
        assert "2> The dog\n" in screen.shown
        assert len(re.findall(r"(?m)^1│ ", screen.shown)) > 2
        assert len(re.findall(r"(?m)^2│ ", screen.shown)) > 2
        screen.type("quit\r")
        assert screen.end() == 0


def test_ctrl_c_cancels_the_answers(served: str) -> None:
    """Ctrl-C ends running answers, keeps the line being typed, and twice with nothing running leaves."""
    with terminal("chat", "-e", served, "-o", "ignore_eos=true", "-n", "500") as screen:
        screen.expect(r"1>")
        screen.type(f"{START}\r")
        screen.expect(r", there was")
        screen.type("half a line")
        screen.expect(r"2> half a line")
        screen.type("\x03")
        screen.expect(r"✗ cancelled\n2> half a line")
        screen.type("\x03")
        screen.expect(r"2>$")
        screen.type("\x03")
        screen.expect(r"Ctrl-C again or Ctrl-D leaves\n2>$")
        screen.type("\x03")
        assert screen.end() == 130


def test_commands_and_mistakes(served: str) -> None:
    """Commands answer, mistakes are explained, and the conversation goes on."""
    with terminal("chat", "-e", served, NO_COLOR="1") as screen:
        screen.expect(r"1>")
        for typed, shown in (
            ("/help", r"/set NAME VALUE"),
            ("/set max_tokens 3", r"max_tokens = 3"),
            ("/nonsense", r"error: no command is called /nonsense"),
            ("/system Be brief.", r"error: the model has no chat template"),
            ("seed=1", r"only parameters"),
            ("a max_tokens=many", r"error: max_tokens is many; expected a whole number"),
            ("/stats", r"stats on"),
            (START, r"length · 3 tokens · ttft"),
            ("/heat rank", r"heat: rank"),
        ):
            screen.type(f"{typed}\r")
            screen.expect(shown)
        screen.type("exit\r")
        assert screen.end() == 0
        assert not re.search(r"\x1b\[[0-9;]*[34]8;5", screen.raw), "NO_COLOR was given"


def test_warnings(served: str, tmp_path: Path) -> None:
    """What was not held stands behind its answer."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": "one two"}')
    with terminal("chat", "-e", served, "--json-schema", str(schema), "--stop", "two", NO_COLOR="1") as screen:
        screen.expect(r"1>")
        screen.type("/stats\r")
        screen.expect(r"stats on")
        screen.type(f"{START}\r")
        screen.expect(
            r"warning: the answer was cut at the stop string 'two', before its constraint had ended it\s+stop · "
        )
        screen.type("exit\r")
        assert screen.end() == 0


def test_line_editing(served: str) -> None:
    """Cursor keys, history and pastes work; a pasted line feed does not send."""
    with terminal("chat", "-e", served, "-n", "3") as screen:
        screen.expect(r"1>")
        screen.type("/set seed 12\x1b[D\x1b[D9\r")
        screen.expect(r"seed = 912")
        screen.type("\x1b[A\x7f3\r")
        screen.expect(r"seed = 913")
        screen.type("\x1b[200~two\nlines\x1b[201~")
        screen.expect(r"1> two\nlines$")
        screen.type("\x03")
        screen.expect(r"1>$")
        screen.type("\x04")
        assert screen.end() == 0


def test_narrow_terminal(served: str) -> None:
    """At 60 columns, and after a change to 40, no line of an answer is wider than the terminal."""
    with terminal("chat", "-e", served, "-n", "60", columns=60) as screen:
        screen.expect(r"1>")
        screen.type(f"{START}\r")
        screen.expect(r"cut at 60 tokens.*\n2>")
        answer = screen.shown.partition(f"1> {START}\n")[2]
        assert 40 < max(len(line) for line in answer.split("\n")) < 60
        screen.resize(40, 20)
        screen.type("The dog\r")
        screen.expect(r"cut at 60 tokens.*\n3>")
        answer = screen.shown.partition("2> The dog\n")[2]
        assert max(len(line) for line in answer.split("\n")) < 40
        screen.type("/quit\r")
        assert screen.end() == 0


def test_answers_into_a_file(served: str, tmp_path: Path) -> None:
    """With stdout in a file the file gets the answers alone; questions and notes go to the terminal."""
    words = ("chat", "-e", served, "-n", "5")
    with (tmp_path / "answers").open("wb") as file, terminal(*words, stdout=file.fileno()) as screen:
        screen.expect(r"1>")
        screen.type(f"{START}\n")
        screen.expect(r"2>")
        screen.expect(r"cut at 5 tokens")
        screen.type("\x04")
        assert screen.end() == 0
    assert (tmp_path / "answers").read_text() == ", there was a little\n"


def test_dumb_terminal(served: str) -> None:
    """A terminal that cannot move its cursor gets plain lines and no escape at all."""
    with terminal("chat", "-e", served, "-n", "5", TERM="dumb") as screen:
        screen.expect(r"1>")
        screen.type(f"{START}\n")
        screen.expect(r", there was a little\n\(cut at 5 tokens")
        screen.type("quit\n")
        assert screen.end() == 0
        assert "\x1b" not in screen.raw


def test_turns(embedded: str, tmp_path: Path) -> None:
    """Answers are gone on with, given again, edited; an earlier turn is gone back to; the next session has all."""
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/fox/cat/' \"$1\"\n")
    editor.chmod(0o755)
    env = {"XDG_DATA_HOME": str(tmp_path), "EDITOR": str(editor), "VISUAL": ""}
    with terminal("chat", "-e", embedded, columns=100, **env) as screen:
        screen.expect(r"1>")
        screen.type("Tell me a story about a fox. max_tokens=6\r")
        screen.expect(r"cut at 6 tokens; /continue goes on\)\n2>")
        first = screen.shown.split("\n")[-3]
        screen.type("/continue max_tokens=4\r")
        screen.expect(r"cut at 4 tokens.*\n3>")
        rest = screen.shown.split("\n")[-3]
        screen.type("/retry\r")
        screen.expect(r"the same answer comes again(?s:.*)cut at 6 tokens.*\n4>")
        assert screen.shown.split("\n")[-3] == first
        screen.type("/edit\r")
        screen.expect(r"4> Tell me a story about a cat\. max_tokens=6\n(?s:.*)cut at 6 tokens.*\n5>")
        screen.type("/branch 2\r")
        screen.expect(r"goes on behind turn 2")
        screen.type("\x04")
        assert screen.end() == 0
    with terminal("chat", "-e", embedded, "--continue", columns=100, **env) as screen:
        screen.expect(r"goes on behind turn 2, the last of 1:\n2> Tell me a story about a fox")
        screen.expect(re.escape(f"{first}{rest}") + r"\n5>")
        screen.type("\x12a cat\r")  # the search puts the line up, which was an editor's and not typed
        screen.type("\x15What is 3+4? max_tokens=3\r")
        screen.expect(r"cut at 3 tokens.*\n6>")
        screen.type("/branch\r")
        screen.expect(r"·\s+2  Tell(?s:.*)\*\s+5  What is 3\+4\?")
        screen.type("\x04")
        assert screen.end() == 0


def test_prompt_beside_a_running_answer(embedded: str, tmp_path: Path) -> None:
    """A prompt that is sent while an answer runs says that it will not see it; what needs that answer waits."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    words = ("-o", "ignore_eos=true", "-t", "1", "--seed", "1", "-n", "900")
    with terminal("chat", "-e", embedded, "--no-history", *words, columns=100, **env) as screen:
        screen.expect(r"1>")
        screen.type("Tell me a story.\r")
        screen.expect(r"1> Tell me a story.\n\S")
        screen.type("And then?\r/retry\r")
        screen.expect(r"sent while answer 1 runs, which this prompt will not see")
        screen.expect(r"error: /retry has to wait: 2 answers are running")
        screen.type("\x03")
        screen.expect(r"✗ cancelled(?s:.*)✗ cancelled")
        screen.type("/model nobody\r")
        screen.expect(r"error: model 'nobody' is not served here")
        screen.type("/model\r")
        screen.expect(r"\* lmtool-tiny  ready")
        screen.type("/model lm\t\r")
        screen.expect(r"/model lmtool-tiny\nlmtool-tiny · ")
        screen.type("\x04")
        assert screen.end() == 0
    assert list(tmp_path.iterdir()) == [], "--no-history was given"


def test_earlier_prompts(served: str, tmp_path: Path) -> None:
    """Earlier sessions' prompts come back by cursor keys, by their beginning, and by search; this one's are added."""
    prompts = tmp_path / "lmtool/prompts.jsonl"
    prompts.parent.mkdir()
    prompts.write_text('"Once upon a time"\n"The dog"\n')
    with terminal("chat", "-e", served, "-n", "2", XDG_DATA_HOME=str(tmp_path)) as screen:
        screen.expect(r"1>")
        screen.type("\x1b[A")
        screen.expect(r"1> The dog$")
        screen.type("\x15On\x1b[A")
        screen.expect(r"1> Once upon a time$")
        screen.type("\x03")
        screen.expect(r"1>$")
        screen.type("\x12dog")
        screen.expect(r"reverse-i-search.*dog")
        screen.type("\r\x05!\r")  # takes the line that was found, and changes it
        screen.expect(r"1> The dog!\n.*\n\(cut at 2 tokens")
        screen.type("\x04")
        assert screen.end() == 0
    assert prompts.read_text().endswith('"The dog"\n"The dog!"\n')
    assert len(list((tmp_path / "lmtool/conversations").iterdir())) == 1


def test_interrupted_answer_on_a_terminal(served: str) -> None:
    """Ctrl-C during one answer keeps its text, cancels it, leaves the cursor on a fresh line, status 130."""
    with terminal("chat", START, "-e", served, "-o", "ignore_eos=true", "-n", "500") as screen:
        screen.expect(r", there was")
        screen.type("\x03")
        assert screen.end() == 130
        assert screen.shown.endswith("\n")


def test_no_server_to_begin_with() -> None:
    """Without a server the conversation does not begin: status 3."""
    with terminal("chat", "-e", "ws://127.0.0.1:1/") as screen:
        screen.expect(r"error: no LMTP server")
        assert screen.end() == 3
