"""Which library holds streams."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

from lmtool import constraint
from lmtool.cli import structured
from lmtool.cli.backends import BackendConfig
from lmtool.errors import ResourceError, UsageError
from lmtool.guide.templates import Templates
from lmtool.guide.xgrammar.templates import XgrammarTemplates
from tests.guide.following import EOS, TOKENIZER, VOCAB
from tests.guide.xgrammar.fakes import FAKE

if TYPE_CHECKING:
    from tests.conftest import Run


def test_an_unknown_name(lmtool: Run) -> None:
    """Is a mistake in the command line; both names are told."""
    with pytest.raises(UsageError):
        structured.check("outlines")
    refused = lmtool("serve", "--structured-backend", "outlines", "--port", "0")
    assert refused.returncode == 2
    assert "known: llguidance, xgrammar" in refused.stderr


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is told at the start, with the line that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ResourceError) as refused:
        BackendConfig(structured_backend="xgrammar").check()
    assert refused.value.exit_code == 8
    assert "pip install 'lmtool[xgrammar]'" in refused.value.hints[0]
    structured.check("llguidance")


def test_not_beside_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose processes would leave no room for those that compile: refused by name."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    with pytest.raises(UsageError, match="--backend vllm and --structured-backend xgrammar") as refused:
        BackendConfig("vllm", sys.executable, structured_backend="xgrammar").check()
    assert refused.value.exit_code == 2
    with pytest.raises(ResourceError, match="there is no vLLM in the environment"):  # which is asked for only then
        BackendConfig("vllm", sys.executable).check()
    BackendConfig("random", structured_backend="xgrammar").check()


@pytest.mark.skipif(importlib.util.find_spec("xgrammar") is not None, reason="this environment has xgrammar")
def test_the_command_ends_without_the_package(lmtool: Run) -> None:
    """With exit status 8, before anything is loaded."""
    refused = lmtool("serve", "--structured-backend", "xgrammar", "--port", "0")
    assert refused.returncode == 8
    assert "pip install 'lmtool[xgrammar]'" in refused.stderr


def test_help_says_for_whom(lmtool: Run) -> None:
    """That xgrammar's steps are not bounded."""
    told = " ".join(lmtool("serve", "--help").stdout.split())
    assert "--structured-backend" in told
    assert "for trusted clients" in told


def test_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name opens its own library; processes of xgrammar's are few, for each has the vocabulary in memory."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.delitem(sys.modules, "xgrammar", raising=False)
    for name, library in (("llguidance", Templates), ("xgrammar", XgrammarTemplates)):
        made = structured.open_compiler(name, TOKENIZER, VOCAB, EOS)
        assert made.compile(constraint.choice(["yes", "no"])).result(60).may_end() is False
        opened = made._library.result()
        assert isinstance(opened, library)
        if isinstance(opened, XgrammarTemplates):
            assert len(opened._processes) == 2
        made.close()
