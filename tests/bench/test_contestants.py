"""How peers are named."""

from __future__ import annotations

import sys

import pytest

from lmtool.bench.contestants import Contestant, contestants
from lmtool.errors import ResourceError, UsageError

OURS = Contestant("lmtool", "float32", sys.executable)


def test_ours_is_always_first() -> None:
    """Also where it is named again, or alone."""
    assert contestants(["none"], "float32") == ([OURS], [])
    found, _ = contestants(["transformers", "lmtool:int8", "lmtool"], "float32")
    assert [one.name for one in found] == ["lmtool:float32", "transformers:float32", "lmtool:int8"]


def test_a_word_says_dtype_and_python() -> None:
    """`NAME:DTYPE=PYTHON`; the dtype of all where it says none."""
    found, _ = contestants([f"llamacpp:int8={sys.executable}", f"vllm={sys.executable}"], "bfloat16")
    assert found[1:] == [Contestant("llamacpp", "int8", sys.executable), Contestant("vllm", "bfloat16", sys.executable)]


def test_without_words_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are named with the way to get them; a Python in the environment counts as installed."""
    monkeypatch.setenv("LMTOOL_VLLM_PYTHON", "elsewhere")
    found, missing = contestants([], "float32")
    assert {"lmtool", "transformers", "transformers-cb"} <= {one.peer for one in found}
    assert Contestant("vllm", "float32", "elsewhere") in found
    for sentence in missing:
        assert "is not installed (pip install" in sentence


@pytest.mark.parametrize("word", ["exllama", "llamacpp:int3", ""])
def test_words_that_make_no_sense(word: str) -> None:
    """Refused with what is known."""
    with pytest.raises(UsageError) as refused:
        contestants([word], "float32")
    assert "known" in refused.value.hints[0]


def test_a_peer_that_was_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 8, with the install line."""
    monkeypatch.delenv("LMTOOL_VLLM_PYTHON", raising=False)
    with pytest.raises(ResourceError) as refused:
        contestants(["vllm"], "float32")
    assert "LMTOOL_VLLM_PYTHON" in refused.value.hints[0]
    with pytest.raises(ResourceError, match="is no program"):
        contestants(["vllm=/nothing/here"], "float32")
