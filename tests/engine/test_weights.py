"""Devices, and the words for a checkpoint that cannot be read; what a load gives is in test_backends."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine import weights
from lmtool.engine.config import EngineConfig
from lmtool.errors import ModelLoadError, OutOfMemoryError, ResourceError

CPU = torch.device("cpu")


class TestDevice:
    """`--device`."""

    def test_cpu(self):
        """The processor is always there."""
        assert weights.find_device("cpu") == CPU

    def test_auto(self):
        """A GPU if there is one."""
        assert weights.find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")

    @pytest.mark.parametrize("name", ["tpu", "cuda:x", "cuda:-1", "", "CPU"])
    def test_unknown(self, name):
        """Any other word is refused with the list of words."""
        with pytest.raises(ResourceError, match="expected auto, cpu, cuda or cuda:N"):
            weights.find_device(name)

    def test_missing(self):
        """A GPU that is not there."""
        with pytest.raises(ResourceError, match=r"'cuda:97' is not there: torch .* sees"):
            weights.find_device("cuda:97")


class TestWords:
    """Whatever loading raises becomes one of our errors."""

    @pytest.mark.parametrize("problem", [MemoryError("no"), torch.OutOfMemoryError("no")])
    def test_memory(self, problem):
        """Out of memory, with what to try."""
        with (
            pytest.raises(OutOfMemoryError, match="does not fit into memory") as caught,
            weights.translated("big", EngineConfig()),
        ):
            raise problem
        assert "bfloat16" in caught.value.hints[0]

    def test_foreign_code(self):
        """A checkpoint with its own code is not run unless allowed."""
        error = weights._load_error("m", EngineConfig(), ValueError("requires ... `trust_remote_code=True`"))
        assert "not run unless you allow it" in error.message
        assert "--trust-remote-code" in error.hints[0]

    def test_not_found(self, monkeypatch):
        """Where it looked, which revision, and that nothing is downloaded offline."""
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        error = weights._load_error("who/what", EngineConfig(revision="v2"), OSError("not in cache\nmore"))
        assert isinstance(error, ModelLoadError)
        assert "who/what (revision v2) was not found" in error.message
        assert "more" not in error.message
        assert "HF_HUB_OFFLINE is set" in error.hints[1]
