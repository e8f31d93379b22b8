"""Our engine and llama.cpp on the same GGUF files, in llama.cpp's own quantized formats.

LMTOOL_LLAMACPP_PYTHON       llama-cpp-python==0.3.36, gguf, safetensors
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.gguf.loader import load_gguf
from lmtool.inference.engine.gguf.tokenizer import read_tokenizer
from lmtool.inference.engine.plan import Plan, Sequence, Span
from tests.inference.engine.cpu.test_accuracy import TEXT

pytestmark = pytest.mark.peer
PYTHON = os.environ.get("LMTOOL_LLAMACPP_PYTHON")
ROOT = Path(__file__).parents[2]
FORMATS = {"F32": None, "F16": 1, "BF16": 32, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}
"""Name to llama.cpp's number of a file type; None: as it was written."""
TEXTS = [
    TEXT,
    "  two  spaces\n\n\tand 12345 numbers, don't!",
    "<|im_start|>user\nHi<|im_end|>\n",
    "Ünïcödé 日本語 🙂 naïve",
    "a",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of all formats, llama.cpp's logits of each, and its ids of the texts."""
    if not PYTHON:
        pytest.skip("LMTOOL_LLAMACPP_PYTHON does not name the Python of an environment with llama-cpp-python and gguf")
    found = tmp_path_factory.mktemp("gguf")
    exact = found / "F32.gguf"
    subprocess.run([PYTHON, str(ROOT / "tests/peer/tiny_gguf.py"), str(ROOT), str(exact)], check=True)
    ids = read_tokenizer(exact).tokenizer.encode(TEXT + (ROOT / "LICENSE").read_text()).ids[:500]
    assert len(ids) == 500  # of few the noise of rounding differs by half
    task = {"exact": str(exact), "formats": FORMATS, "ids": ids, "texts": TEXTS}
    (found / "task.json").write_text(json.dumps(task))
    command = [PYTHON, str(ROOT / "tests/peer/llamacpp_logits.py"), str(found)]
    subprocess.run(command, check=True, capture_output=True)
    return found


def ours(file: Path, ids: list[int], **settings) -> torch.Tensor:
    """Logits after each id: [T, V]."""
    with torch.inference_mode():
        model = load_gguf(str(file), EngineConfig(threads=1, **settings), torch.device("cpu"), lambda _: None)
        assert model is not None
        sequence = Sequence(1, [*ids, 0], prompt_length=1, max_length=len(ids) + 1, scoring=True)
        sequence.blocks = list(range(1, len(ids) // 16 + 2))
        return model.runner.run(Plan(spans=[Span(sequence, 0, len(ids))], fresh_blocks=sequence.blocks))


def divergence(exact: torch.Tensor, other: torch.Tensor) -> float:
    """Kullback-Leibler divergence from the exact distributions, in nats, the mean of all positions."""
    first, second = (logits.double().log_softmax(-1) for logits in (exact, other))
    return float((first.exp() * (first - second)).sum(-1).mean())


@pytest.mark.parametrize("name", FORMATS)
def test_logits(folder, name):
    """We are as far from the numbers in the file as llama.cpp is, which rounds inputs of products to bytes as well.

    For K-quants it gives 256 of them one scale, we 32, and are closer. Of F32 and F16 it is exact, as we in float32.
    """
    ids = json.loads((folder / "task.json").read_text())["ids"]
    theirs = torch.from_numpy(np.load(folder / f"{name}.npy"))
    exact = ours(folder / f"{name}.gguf", ids, dtype="float32")
    if name in {"F32", "F16"}:
        assert divergence(exact, theirs) < 2e-6
        return
    held = divergence(exact, ours(folder / f"{name}.gguf", ids))
    assert 0 < held < (0.8 if name in {"Q4_K_M", "Q5_K_M", "Q6_K"} else 1.15) * divergence(exact, theirs)


def test_ids(folder):
    """Of every text, special tokens in it, those of llama.cpp."""
    theirs = json.loads((folder / "tokens.json").read_text())
    tokenizer = read_tokenizer(folder / "F32.gguf").tokenizer
    assert [tokenizer.encode(text).ids for text in TEXTS] == theirs
