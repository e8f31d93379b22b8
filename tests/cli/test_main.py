"""Start-up of the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lmtool.cli.main import complete_values
from lmtool.core.errors import UsageError

MODULES_OF_OURS = 30
"""Most that our part of the program may load on top of typer: a start is as slow as the modules it loads."""


def run(code: str) -> str:
    """Run Python code in a process of its own and return the last line it prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1]


def test_help_loads_little() -> None:
    """`lmtool --help` loads hardly more than typer itself: its budget is 120 ms of CPU over `python -c pass`."""
    typer = int(run("import sys, typer; print(len(sys.modules))"))
    code = """import atexit, sys
atexit.register(lambda: print(len(sys.modules)))
sys.argv = ['lmtool', '--help']
from lmtool.cli.main import main
main()"""
    assert int(run(code)) - typer <= MODULES_OF_OURS


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version_needs_no_typer(word: str) -> None:
    """--version is answered before the command line library is imported."""
    code = f"""import sys; sys.argv = ['lmtool', {word!r}]
from lmtool.cli.main import main
main(); print('typer' in sys.modules)"""
    assert run(code) == "False"


def test_garbage_is_collected_while_a_command_runs() -> None:
    """Only imports put it off; what they have brought is left out of it."""
    code = """import gc, io, sys
seen = set()
class Out(io.StringIO):
    def write(self, text):
        seen.add((gc.isenabled(), gc.get_freeze_count() > 10_000))
        return len(text)
sys.argv, screen, sys.stdout = ['lmtool', 'docs', 'serving'], sys.stdout, Out()
from lmtool.cli.main import main
try:
    main()
except SystemExit:
    print(seen, file=screen)"""
    assert run(code) == "{(True, True)}"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_in_the_locale_s_encoding(encoding: str) -> None:
    r"""Characters that a terminal's encoding lacks are written as `\uXXXX`: in JSON they stay what they are."""
    command = [sys.executable, "-m", "lmtool", "tokenize", "--tokenizer", "lmtool-tiny", "é", "--json"]
    result = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=True)
    assert json.loads(result.stdout.decode(encoding))["tokens"][0]["text"] == "é"


def test_a_word_in_another_script_is_no_value() -> None:
    """`--heat 日本` is a prompt with probabilities, as none of the values of `--heat` looks like it."""
    assert complete_values(["score", "--heat", "日本"]) == ["score", "--heat=prob", "日本"]
    with pytest.raises(UsageError):
        complete_values(["score", "--heat", "entropie"])
