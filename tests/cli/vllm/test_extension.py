"""Constraints compiled where vLLM's engine is, asked for again and again."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from lmtool import constraint
from lmtool.cli.vllm import extension
from lmtool.cli.vllm.extension import GuideExtension, begin, compiler
from lmtool.cli.vllm.scratch import KEY
from lmtool.constraint import written
from lmtool.text.tokenizer import load_tokenizer
from lmtool.tiny.path import MODEL_DIR


@pytest.fixture
def folder(tmp_path):
    """What a worker leaves for its engine."""
    settings = {"vocab_size": 1600, "eos_ids": [1], "tokenizer": load_tokenizer(str(MODEL_DIR)).to_json()}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    yield str(tmp_path)
    made = compiler(str(tmp_path))
    if made is not None:
        made.close()
    compiler.cache_clear()


@pytest.fixture
def worker(folder):
    """VLLM's worker, as far as it is used."""
    made = GuideExtension()
    made.vllm_config = SimpleNamespace(additional_config={KEY: folder})
    return made


def ask(worker, held):
    """Ask until there is an answer."""
    text = json.dumps(written(held))
    while (answer := worker.lmtool_compile(text)) is None:
        extension._pending[text].exception(30)  # waits in place of the many times that a worker asks
    return answer


def test_outcomes(worker):
    """Warnings of a good one, code and message of a bad one; then nothing is pending."""
    assert ask(worker, constraint.regex("[0-9]+")) == {"warnings": []}
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert ask(worker, constraint.json_schema(unique, strict=False))["warnings"]
    code, message, *_ = ask(worker, constraint.json_schema(unique))["error"]
    assert code == "invalid_constraint"
    assert "uniqueItems" in message
    assert extension._pending == {}


def test_what_was_compiled_is_there_for_the_rows(worker, folder):
    """At once, a fresh guide each."""
    held = constraint.regex("[0-9]+")
    ask(worker, held)
    first, second = (begin(folder, json.dumps(written(held))) for _ in range(2))
    assert first.done()
    assert first.result() is not second.result()


def test_a_model_without_a_tokenizer(tmp_path):
    """Cannot be held, and says so."""
    (tmp_path / "settings.json").write_text(json.dumps({"vocab_size": 9, "eos_ids": [1], "tokenizer": None}))
    assert "without a tokenizer" in str(begin(str(tmp_path), "{}").exception())
    compiler.cache_clear()
