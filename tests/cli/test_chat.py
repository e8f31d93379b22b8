"""`lmtool chat` on a real server and a real model, and `lmtool history`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.cli.chat import _text_style, history
from lmtool.cli.common_options import Common
from lmtool.core.errors import UsageError
from lmtool.terminal.chat.conversation_store import conversations_folder, prompts_file

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Run

Run = Callable[..., subprocess.CompletedProcess[str]]
STORIES = Path(__file__).parent.parent / "data/stories260K"
START = "Once upon a time"


@pytest.fixture
def chat(lmtool: Run, served: str) -> Run:
    """Run `lmtool chat WORDS...` against the shared server."""
    return lambda *words, **more: lmtool("chat", "-e", served, *words, **more)


def test_parameters_in_the_prompt(chat: Run) -> None:
    """`max_tokens=5` behind the prompt gives exactly five tokens, greedy: the same as by option."""
    by_words = json.loads(chat(f"{START} max_tokens=5", "--json").stdout)
    assert len(by_words["tokens"]) == 5
    assert by_words["finish_reason"] == "length"
    assert by_words["usage"]["completion_tokens"] == 5
    assert chat(START, "-n", "5").stdout == by_words["text"] + "\n"
    assert chat(*START.split(), "max_tokens=5").stdout == by_words["text"] + "\n"
    assert chat("max_tokens=5", stdin=START).stdout == by_words["text"] + "\n"


def test_heat_or_markdown() -> None:
    """Text is styled one way: both typed is a mistake, one typed wins over the other in a settings file."""
    assert _text_style("rank", markdown=False, typed=frozenset()) == ("rank", False)
    assert _text_style("rank", markdown=True, typed=frozenset({"markdown"})) == (None, True)
    assert _text_style("rank", markdown=True, typed=frozenset({"heat"})) == ("rank", False)
    with pytest.raises(UsageError, match="both style"):
        _text_style("rank", markdown=True, typed=frozenset({"heat", "markdown"}))


def test_conversations_need_no_prompt(chat: Run) -> None:
    """`--continue` beside a prompt is refused, with what to do."""
    done = chat("Hello", "--continue")
    assert done.returncode == 2
    assert "--continue takes no prompt" in done.stderr


def test_literal(chat: Run) -> None:
    """With `--literal`, or behind `--`, `max_tokens=5` is text."""
    for words in (["--literal", "-n", "3", "Say max_tokens=5"], ["-n", "3", "--", "Say max_tokens=5"]):
        dry = chat("--dry-run", *words).stdout
        assert json.loads(dry.partition(" ")[2])["prompt"] == "Say max_tokens=5"


def test_own_tokenizer_gives_the_same_text(chat: Run) -> None:
    """With `--tokenizer` ids go over the wire, and the text is the same."""
    own = chat(START, "-n", "12", "--tokenizer", str(STORIES))
    assert own.stdout == chat(START, "-n", "12").stdout
    assert own.stderr == ""
    dry = chat(START, "-n", "12", "--tokenizer", str(STORIES), "--dry-run").stdout
    assert isinstance(json.loads(dry.partition(" ")[2])["prompt"][0], int)


def test_table_with_texts(chat: Run) -> None:
    """With a tokenizer at hand, alternatives are shown as texts."""
    table = chat(START, "-n", "2", "--table", "--top-logprobs", "3", "--tokenizer", str(STORIES)).stdout
    first = table.splitlines()[1]
    assert first.count("'") == 2 + 2 * 3
    assert "#" not in first


def test_seeded_streams_can_be_repeated(chat: Run) -> None:
    """Sampled streams of one prompt differ, and come out the same with the same seed."""
    words = (START, "-n", "20", "-t", "1", "--seed", "3", "--n-streams", "3", "--no-stream")
    first, again = chat(*words).stdout, chat(*words).stdout
    assert first == again
    assert len({line[3:] for line in first.splitlines()}) >= 3


def test_stop(chat: Run) -> None:
    """A stop text ends the answer before it."""
    assert chat(START, "--stop", "girl", "-n", "60").stdout.endswith("little \n")


def test_colours_only_on_demand(chat: Run) -> None:
    """A pipe gets no escape unless asked for with `--color always`."""
    assert "\x1b" not in chat(START, "-n", "3", "--heat").stdout
    assert "\x1b[38;5;" in chat(START, "-n", "3", "--heat", "--color", "always").stdout
    assert "\x1b[38;5;" in chat(START, "-n", "3", "--heat", "rank", "--color", "always").stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--json", "--table", "Hi"], 2, "--table and --json"),
        (["Hi max_tokens=many"], 2, "max_tokens is many; expected a whole number"),
        (["-o", "tempo=1", "Hi"], 2, "no parameter is called 'tempo'"),
        (["Hi", "--max-tokens", "0"], 2, "less than 1"),
        (["Hi", "-t", "-1"], 2, "less than 0"),
        (["Hi", "--heat", "rainbow"], 2, "--heat rainbow: expected one of"),
        (["Hi", "--top-p", "7"], 2, "--top-p is 7.0; expected a number above 0"),
        (["Hi", "--heat=warm"], 2, "warm"),
        (["Hi", "--no-such-option"], 2, "no such option"),
        ([], 2, "the prompt is empty"),
        (["Hi", "--system", "Be brief."], 2, "stories260K has no chat template"),
        (["Hi", "--template"], 4, "chat template"),
        (["Hi", "-m", "other"], 4, "other"),
        (["Hi", "--tokenizer", "./nowhere"], 8, "no such folder"),
        (["Hi", "-o", "top_p=7"], 2, "top_p is 7; expected"),
    ],
)
def test_mistakes(chat: Run, words: list[str], status: int, message: str) -> None:
    """Each mistake has a sentence that names it and the documented status; stdout stays empty."""
    result = chat(*words)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_without_stdin(served: str) -> None:
    """Without a prompt and with stdin closed or a device, there is nothing to talk with: status 2."""
    command = f"{sys.executable} -m lmtool chat -e {served} <&-"
    closed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert closed.returncode == 2
    assert "no prompt" in closed.stderr


def test_settings_file(chat: Run, tmp_path: Path) -> None:
    """`lmtool.toml` gives the command's defaults; what is typed wins."""
    (tmp_path / "lmtool.toml").write_text("[chat]\nmax_tokens = 3\n")
    assert json.loads(chat(START, "--json").stdout)["usage"]["completion_tokens"] == 3
    assert json.loads(chat(START, "--json", "-n", "4").stdout)["usage"]["completion_tokens"] == 4
    assert json.loads(chat(f"{START} max_tokens=2", "--json").stdout)["usage"]["completion_tokens"] == 2


def test_answer_fits_by_default(chat: Run) -> None:
    """Without a limit an answer has at most half of the model's context (512 tokens), so that most prompts fit."""
    sent = json.loads(chat(START, "--dry-run").stdout.partition(" ")[2])
    assert sent["max_tokens"] == 256


HEADER = '{"lmtp_trace": 1, "title": "Tell me a story", "model": {"name": "m"}}\n'


def test_listing_and_clearing(lmtool: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Conversations are listed, as JSON too; `--clear` removes them and the prompts, and nothing else."""
    history(Common(), clear=False, json=False)
    assert "no conversation is kept yet" in capsys.readouterr().err
    conversations_folder().mkdir(parents=True)
    (conversations_folder() / "a.lmtp.jsonl").write_text(HEADER)
    other = conversations_folder() / "mine.txt"
    other.write_text("")
    prompts_file().write_text('"one"\n')
    done = lmtool("history")
    assert done.stdout.startswith("  1  ")
    assert done.stdout.endswith(" 1 KiB  m  Tell me a story\n")
    history(Common(), clear=False, json=True)
    listed = json.loads(capsys.readouterr().out)
    assert (listed["title"], listed["model"], Path(listed["path"]).name) == ("Tell me a story", "m", "a.lmtp.jsonl")
    history(Common(), clear=True, json=False)
    assert capsys.readouterr().out == "removed 1 conversation and all typed prompts\n"
    assert list(conversations_folder().iterdir()) == [other]
    assert not prompts_file().exists()
