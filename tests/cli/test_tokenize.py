"""`lmtool tokenize`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtool.cli.tokenize import as_json, as_rows, parse_ids, quoted, text_of
from lmtool.core.errors import UsageError
from lmtool.inference.text.tokenizer import TextTokenizer, load_tokenizer

STORIES = Path(__file__).parent.parent / "data/stories260K"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def stories() -> TextTokenizer:
    """Return a real tokenizer: 512 ids, Llama's byte fallback."""
    return load_tokenizer(str(STORIES))


def test_rows(stories: TextTokenizer) -> None:
    """A row a token: id, text with its blanks, bytes; parts of a character by their spelling."""
    rows = as_rows(stories.encode("Hello 🙂"), stories).splitlines()
    assert rows[0].split() == ["1", "<s>"]
    assert rows[1] == "346  ' He'             20 48 65"
    assert [row.split()[-1] for row in rows[-4:]] == ["f0", "9f", "99", "82"]
    assert quoted(243, stories) == "<0xF0>"
    assert text_of(243, stories) is None


def test_json(stories: TextTokenizer) -> None:
    """One object: the bytes of all tokens together are the text."""
    found = json.loads(as_json(stories.encode("Hé", special=False), stories))
    assert found["tokenizer"] == "stories260K"
    assert found["count"] == len(found["tokens"])
    assert bytes.fromhex("".join(token["bytes"] for token in found["tokens"])).decode().strip() == "Hé"


@pytest.mark.parametrize("text", ["15496 220", "15496,220", "[15496, 220]", " 15496\n220 "])
def test_ids(text: str) -> None:
    """Ids stand between blanks, commas or brackets."""
    assert parse_ids(text) == [15496, 220]


@pytest.mark.parametrize("text", ["1 x", "-1", "1.5", "99999999999"])
def test_what_is_no_id(text: str) -> None:
    """Anything else is refused by name."""
    with pytest.raises(UsageError, match="is not a token id"):
        parse_ids(text)


def test_command(lmtool: Run) -> None:
    """There and back without a server: text to ids, ids to text, the number of tokens."""
    name = ("--tokenizer", str(STORIES))
    ids = json.loads(lmtool("tokenize", "Once upon a time", "--json", *name).stdout)["tokens"]
    words = " ".join(str(token["id"]) for token in ids)
    assert lmtool("tokenize", "--decode", *name, stdin=words).stdout == "Once upon a time\n"
    assert lmtool("tokenize", "--ids", words, "--count", *name).stdout == f"{len(ids)}\n"
    rows = lmtool("tokenize", "--no-special", *name, stdin="Once upon a time\n").stdout
    assert len(rows.splitlines()) == len(ids) - 1


def test_included_model_by_its_name(lmtool: Run) -> None:
    """`lmtool-tiny` names the included model's tokenizer, as it names the model."""
    named = lmtool("tokenize", "hi", "-m", "lmtool-tiny")
    assert (named.returncode, named.stdout) == (0, lmtool("tokenize", "hi").stdout), named.stderr


def test_embedded_model_is_the_default(lmtool: Run) -> None:
    """Without --tokenizer the embedded model's is used."""
    result = lmtool("tokenize", "Hello there")
    assert result.returncode == 0, result.stderr
    assert "there'" in result.stdout


def test_mistakes(lmtool: Run) -> None:
    """Mistakes end with a sentence and the documented status."""
    name = ("--tokenizer", str(STORIES))
    unknown = lmtool("tokenize", "--ids", "512", *name)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "id 512 is not in the vocabulary of stories260K" in unknown.stderr
    assert lmtool("tokenize", "a", "--ids", "1", *name).returncode == 2
    assert lmtool("tokenize", "a", "--tokenizer", "./nowhere").returncode == 8
