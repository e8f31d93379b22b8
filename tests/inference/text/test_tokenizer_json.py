"""Files of a stranger's tokenizer: each loads, or is refused in one sentence before anything large is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.errors import FileError, RequestError
from lmtool.inference.text.tokenizer import load_tokenizer
from tests.conftest import STORIES

TOKEN = {"id": 512, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
TOKEN["special"] = True
DOUBLES = {"type": "Replace", "pattern": {"Regex": "."}, "content": "xx"}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def frame(count: int) -> dict[str, Any]:
    parts = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<s>": {"id": "<s>", "ids": [1] * count, "tokens": ["<s>"] * count}}
    return {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": special}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """A folder whose tokenizer.json is the stories model's with changes; a member of `model` is changed within it."""

    def write(settings: str = "{}", **changes: Any) -> str:
        content = json.loads((STORIES / "tokenizer.json").read_text())
        content["model"] |= changes.pop("model", {})
        (tmp_path / "tokenizer.json").write_text(json.dumps(content | changes))
        (tmp_path / "tokenizer_config.json").write_text(settings)
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"vocab": {"a": 10**9}}}, r"Expected `int` <= 16777215 - at `\$.model.vocab"),
        ({"model": {"vocab": {"a": -1}}}, "-1"),
        ({"model": {"vocab": None, "merges": "x"}}, "MergeType"),
        ({"added_tokens": [TOKEN | {"id": -1}]}, "-1"),
        ({"added_tokens": [TOKEN | {"content": "x" * 5_000_000}]}, "its added tokens have 5000000 characters"),
        ({"added_tokens": [TOKEN] * 200_000}, "array` of length <= 131072 - at `\\$.added_tokens"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 300}}, "more than 256 times as long"),
        ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 26}}, "more than 256 times as long"),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLES] * 26}}, "more than 256 times as long"),
        ({"post_processor": frame(1000)}, "it adds 1000 tokens to each text; expected 256 at most"),
        ({"pre_tokenizer": split("(")}, "Oniguruma error"),
        ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"}}, "cannot be used: .*Missing .UNK. token"),
        ({"model": {"vocab": {"zz": 0}, "merges": []}}, "cannot be used: .*`<unk>` not found"),
    ],
)
def test_refused(written: Callable[..., str], changes: dict[str, Any], sentence: str) -> None:
    """Ids, lengths and sizes that no tokenizer has, and tokenizers that cannot encode a letter, at load."""
    with pytest.raises(FileError, match=sentence):
        load_tokenizer(written(**changes))


@pytest.mark.parametrize(
    "settings",
    [
        '{"bos_token": ' + "[" * 100_000,
        '{"eos_token": "\\ud800"}',
        '{"chat_template": "\\ud800"}',
        '{"model_max_length": ' + "9" * 5000 + "}",
        "[]",
    ],
    ids=["nested", "surrogate", "template", "digits", "list"],
)
def test_settings_refused(written: Callable[..., str], settings: str) -> None:
    """Settings that are nested without end, or hold what is no text, are refused by the file's name."""
    with pytest.raises(FileError, match=r"tokenizer_config\.json (is no JSON|holds list)"):
        load_tokenizer(written(settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"model_max_length": 10**30},
        {"model_max_length": "long", "bos_token": 5, "eos_token": {"content": 5}, "chat_template": 7},
        {"chat_template": [{"name": ["default"], "template": "a"}, 5]},
        {"added_tokens_decoder": {"99999999999": {"content": "a", "special": True}}},
    ],
)
def test_what_is_not_used(written: Callable[..., str], settings: dict[str, Any]) -> None:
    """Settings of other kinds than expected count as absent."""
    assert load_tokenizer(written(json.dumps(settings))).encode("hi") == load_tokenizer(str(STORIES)).encode("hi")


def test_long_files(tmp_path: Path) -> None:
    """A file of 128 MiB or more is not read."""
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FileError, match=r"tokenizer\.json has 1099511627776 bytes"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    "part", [{"pre_tokenizer": split("(a+)+$")}, {"normalizer": DOUBLES | {"pattern": {"Regex": "(a+)+$"}}}]
)
def test_backtracking(written: Callable[..., str], part: dict[str, Any]) -> None:
    """A regular expression that goes beyond the library's own limit fails its request, and no more."""
    tokenizer = load_tokenizer(written(**part))
    with pytest.raises(RequestError, match=r"the model's tokenizer fails on this text: .*retry-limit"):
        tokenizer.encode("a" * 40 + "!")
    assert tokenizer.encode("b")


def test_decoding(written: Callable[..., str]) -> None:
    """So does one of the decoder."""
    long = TOKEN | {"content": "a" * 40, "special": False}
    tokenizer = load_tokenizer(written(decoder=DOUBLES | {"pattern": {"Regex": "(a+)+b"}}, added_tokens=[long]))
    with pytest.raises(RequestError, match=r"the model's tokenizer fails on this text: .*retry-limit"):
        tokenizer.decode([512])


def test_dropout(written: Callable[..., str]) -> None:
    """Random merges are for training: a text has the same ids each time."""
    tokenizer = load_tokenizer(written(model={"dropout": 0.9}))
    assert [tokenizer.encode("once upon a time") for _ in range(5)] == [tokenizer.encode("once upon a time")] * 5
    assert tokenizer.encode("once upon a time") == load_tokenizer(str(STORIES)).encode("once upon a time")
