"""Reasoning parsers by name, by what a chat template shows, and from another package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmtool.core.errors import UsageError
from lmtool.inference.text.reasoning_parsers import NONE, find_parser, installed, parser_of
from lmtool.inference.text.thought_reader import MarkedThoughts
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.config import ModelsConfig
from tests.inference.text.test_thought_reader import read

GPT_OSS = "<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
MUSING = """
from lmtool.inference.text.thought_reader import MarkedThoughts

parser = MarkedThoughts("musing", "<muse>", "</muse>", "")


def make():
    return MarkedThoughts("made", "<make>", "</make>", "")


def fails():
    raise OSError("no disk")


neither = dict
"""
ENTRIES = "[lmtool.reasoning_parsers]\n" + "".join(
    f"{name} = brought_parsers:{attribute}\n"
    for name, attribute in (
        *(("musing", "parser"), ("made", "make"), ("broken", "nothing")),
        *(("fails", "fails"), ("neither", "neither")),
    )
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that brings parsers, installed beside lmtool."""
    (tmp_path / "brought_parsers.py").write_text(MUSING)
    metadata = tmp_path / "brought_parsers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought-parsers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    find_parser.cache_clear()
    yield
    find_parser.cache_clear()
    sys.modules.pop("brought_parsers", None)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages }}", NONE),
        ("<|im_start|>assistant\n<think>\n", "think"),
        ("{% set content = content.split('</think>')[-1] %}", "deepseek_r1"),
        ("[SYSTEM_PROMPT] ... [THINK] ... [/THINK]", "mistral"),
        ("<seed:think>{{ m.reasoning_content }}</seed:think>", "seed_oss"),
        (GPT_OSS, "openai_gptoss"),
        ("<|channel|>", NONE),
    ],
)
def test_what_a_template_tells(template: str, name: str) -> None:
    """By the marks in it; the closing one alone where it only cuts thoughts off earlier turns."""
    assert parser_of(template) == name
    loaded = load_tokenizer(str(MODEL_DIR), chat_template=template)
    assert (None if loaded.reasoning is None else loaded.reasoning.name) == (None if name == NONE else name)


def test_the_one_that_is_named() -> None:
    """Over what the template tells; an unknown name is refused with those that are known, before anything is loaded."""
    named = load_tokenizer(str(MODEL_DIR), chat_template="<think>", reasoning_parser="mistral")
    assert named.reasoning is not None
    assert (named.reasoning.name, named.reasoning.heeds_effort) == ("mistral", False)
    assert load_tokenizer(str(MODEL_DIR), chat_template="<think>", reasoning_parser=NONE).reasoning is None
    heeding = load_tokenizer(str(MODEL_DIR), chat_template="<think> {{ reasoning_effort }}").reasoning
    assert heeding is not None
    assert heeding.heeds_effort
    for name in installed():
        parser = find_parser(name)
        assert (parser is None) == (name == NONE)
        assert parser is None or parser.name == name
    with pytest.raises(UsageError, match="'thinks' is unknown") as refused:
        ModelsConfig(reasoning_parser="thinks").check()
    assert "deepseek_r1" in str(refused.value.hints)


@pytest.mark.usefixtures("package")
def test_parsers_of_another_package() -> None:
    """An object or what makes one; a broken one is refused by name where it is asked for, and hurts no other."""
    assert {"musing", "made", "broken"} <= {*installed()}
    musing = find_parser("musing")
    assert isinstance(musing, MarkedThoughts)
    assert read(musing.reader("open", constrained=False), ["Hm.</mu", "se> Yes."]) == ("Hm.", "Yes.")
    made = find_parser("made")
    assert made is not None
    assert made.name == "made"
    for name, why in (("broken", "cannot be loaded"), ("fails", "no disk"), ("neither", "dict, which is none")):
        with pytest.raises(UsageError, match=why):
            find_parser(name)
    assert find_parser("think") is not None
