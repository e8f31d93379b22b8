"""`lmtool score` on a real server and a real model."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
STORIES = Path(__file__).parent.parent / "data/stories260K"


@pytest.fixture
def score(lmtool: Run, served: str) -> Run:
    """Run `lmtool score WORDS...` against the shared server."""
    return lambda *words, **more: lmtool("score", *words, "-e", served, **more)


def test_candidates_are_compared(score: Run) -> None:
    """A row a candidate; the likelier one has the longer bar."""
    head, time, dog = score("Once upon a", " time", " dog").stdout.splitlines()
    assert head.split() == ["candidate", "tokens", "logprob", "p", "ppl"]
    assert time.count("█") == 16
    assert dog.count("█") == 0
    assert "' dog'" in dog


def test_generating_and_scoring_agree(score: Run, lmtool: Run, served: str) -> None:
    """The logprobs of a generated text are those of the same text scored."""
    made = json.loads(lmtool("chat", "Once upon a time max_tokens=8", "--json", "-e", served).stdout)
    found = json.loads(score("Once upon a time", made["text"], "--json").stdout)["candidates"][0]
    assert [t["token"] for t in found["tokens"]] == [t["token"] for t in made["tokens"]]
    assert found["logprob"] == pytest.approx(made["logprob"], abs=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(-found["logprob"] / 8))


def test_own_tokenizer_agrees(score: Run) -> None:
    """Tokenized here or there, the scores are the same."""
    words = ("Once upon a", " time there was", "--csv")
    assert score(*words, "--tokenizer", str(STORIES)).stdout == score(*words).stdout


@pytest.mark.parametrize("words", [("a\udcff", " b"), ("a", " b\udcff")])
def test_words_that_are_no_text(score: Run, words: tuple[str, str]) -> None:
    """Bytes of a command line that are not UTF-8 are refused with a sentence."""
    result = score(*words)
    assert result.returncode == 2
    assert "not valid UTF-8" in result.stderr


def test_empty_text_has_no_tokens(score: Run) -> None:
    """The score of nothing is that of no tokens, and does not hang."""
    found = json.loads(score("Once upon a", "", " time", "--json").stdout)["candidates"]
    nothing, something = found
    assert (nothing["text"], nothing["tokens"], nothing["logprob"], nothing["perplexity"]) == ("", [], 0.0, None)
    assert len(something["tokens"]) == 1


def test_forms(score: Run) -> None:
    """`--per token` and `word` have a row each; `--top` alternatives; `--csv` can be read; `--ppl-only` is a number."""
    assert len(score("Once upon a", " time there", "--per", "token").stdout.splitlines()) == 3
    assert len(score("OneShotOptions", " upon a time", "--per", "word").stdout.splitlines()) == 4
    top = score("Once upon a", " time", "--top", "2", "--tokenizer", str(STORIES)).stdout.splitlines()[1]
    assert top.count("'") == 6
    rows = list(csv.DictReader(io.StringIO(score("Once upon a", " time", " dog", "--csv").stdout)))
    assert [row["text"] for row in rows] == [" time", " dog"]
    assert float(score("Once upon a", " time", "--ppl-only").stdout) >= 1.0
    assert "\x1b[38;5;" in score("Once upon a", " time", "--heat", "--color", "always").stdout


def test_stdin(score: Run) -> None:
    """`-` is stdin, once."""
    assert "' time'" in score("Once upon a", "-", stdin=" time\n").stdout
    assert score("-", "-", stdin="x").returncode == 2


def test_single_text_has_no_prompt(score: Run) -> None:
    """A text alone is scored from its start, which is this model's bos."""
    alone = score("Once upon a time", "--json")
    assert json.loads(alone.stdout)["prompt"] == ""
    assert json.loads(alone.stdout)["candidates"][0]["tokens"][0]["logprob"] < 0
    assert "first token" not in alone.stderr
    both = json.loads(score("--no-prompt", " time", " dog", "--json").stdout)
    assert [c["text"] for c in both["candidates"]] == [" time", " dog"]


def test_a_first_token_without_anything_before_it(lmtool: Run, embedded: str) -> None:
    """Where no bos is put in front, it has no probability: it is no part of sums and perplexity, and that is said."""
    alone = lmtool("score", "Once upon a time", "--json", "-e", embedded)
    (found,) = json.loads(alone.stdout)["candidates"]
    first, *later = [token["logprob"] for token in found["tokens"]]
    assert (first, "top_logprobs" in found["tokens"][0]) == (None, False)
    assert found["perplexity"] == pytest.approx(math.exp(-math.fsum(later) / len(later)))
    assert "first token" in alone.stderr
    rows = lmtool("score", "Once upon a time", "--per", "token", "--top", "2", "-e", embedded).stdout.splitlines()
    assert rows[1].split()[1:] == ["1", "-", "-", "-"]


def test_a_file(lmtool: Run, embedded: str, tmp_path: Path) -> None:
    """A file's text is scored as it is: by its name alone, as `@FILE`, and from stdin."""
    (tmp_path / "a.txt").write_text("Once upon a time\n")
    by_name = lmtool("score", str(tmp_path / "a.txt"), "--heat", "--color", "always", "-e", embedded)
    assert by_name.returncode == 0, by_name.stderr
    assert "\x1b[38;5;" in by_name.stdout
    assert f"{tmp_path / 'a.txt'} is a file: scoring its text" in by_name.stderr
    text = json.loads(lmtool("score", f"@{tmp_path / 'a.txt'}", "--json", "-e", embedded).stdout)
    assert text["candidates"][0]["text"] == "Once upon a time\n"
    piped = json.loads(lmtool("score", "--json", "-e", embedded, stdin="Once upon a time").stdout)
    assert piped["candidates"][0]["text"] == "Once upon a time"
    (tmp_path / "b.bin").write_bytes(b"a\xffb")
    wrong = lmtool("score", f"@{tmp_path / 'b.bin'}", "-e", embedded)
    assert (wrong.returncode, "byte 1 is 0xff" in wrong.stderr) == (7, True)


def test_a_text_that_is_longer_than_the_context(lmtool: Run, embedded: str, tmp_path: Path) -> None:
    """It is scored in windows, which is said; each token has the logprob that its own window gives it."""
    from lmtool.inference.text.tokenizer import load_tokenizer
    from lmtool.inference.tiny.path import MODEL_DIR
    from lmtool.settings.score_input import windows

    text = "".join(f"Once upon a time there were {n} foxes in a small house. \n" for n in range(60))
    (tmp_path / "a.txt").write_text(text)
    scored = lmtool("score", str(tmp_path / "a.txt"), "--json", "-e", embedded)
    assert "do not fit into the model's context of 512" in scored.stderr
    (found,) = json.loads(scored.stdout)["candidates"]
    ids = load_tokenizer(str(MODEL_DIR)).encode_continuation(text)
    assert [token["token"] for token in found["tokens"]] == ids
    assert "".join(token["text"] for token in found["tokens"]) == found["text"] == text
    window = windows(0, len(ids), 512)[1]
    one = asyncio.run(_scored(embedded, tuple(ids[window.start : window.first]), tuple(ids[window.first : window.end])))
    assert [token["logprob"] for token in found["tokens"][window.first : window.end]] == one
    assert found["logprob"] == pytest.approx(math.fsum(t["logprob"] or 0.0 for t in found["tokens"]))


async def _scored(url: str, prompt: tuple[int, ...], scored: tuple[int, ...]) -> list[float | None]:
    from lmtool.core.streams import stream
    from lmtool.core.types import ScoreRequest
    from lmtool.protocol.lmtp.client import LmtpClient

    async with LmtpClient(url) as client:
        return [one.logprob async for one in stream(client, ScoreRequest(1, prompt, scored)) if one.token is not None]


def test_mistakes(score: Run) -> None:
    """Mistakes have a sentence and the documented status."""
    assert score("a", "b", "--csv", "--json").returncode == 2
    unknown = score("a", "b", "-m", "other")
    assert (unknown.returncode, unknown.stdout) == (4, "")
    assert "other" in unknown.stderr
    assert score().returncode == 2
