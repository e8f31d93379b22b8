"""Command lines of vLLM and of DotLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmtool.cli.vllm_flags import translate
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from tests.conftest import Run


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("--model X --host 0.0.0.0 --port 8000", "X --host 0.0.0.0 --port 8000"),
        ("X --max-model-len 32k --max-num-seqs=8", "X --max-context 32000 --max-streams 8"),
        ("X --max-model-len 4K --max-num-batched-tokens 512", "X --max-context 4096 --max-batch-tokens 512"),
        ("X --max_model_len=auto", "X"),
        ("--model=X --served-model-name a b -q", "X --served-model-name a --served-model-name b -q"),
        ("--served-model-name a X", "--served-model-name a X"),
        ("X --max-logprobs 50", "X --max-logprobs 50"),
        ("X --enable-prefix-caching --no-enable-prefix-caching", "X --prefix-cache --no-prefix-cache"),
        ("X --tensor-parallel-size 1", "X"),
        ("X --backend vllm -tp 2", "X --backend vllm --layout 1x2"),
        ("X -dp 2", "X --replicas 2"),
        ("X --enable-auto-tool-choice --tool-call-parser hermes", "X --tool-call-parser hermes"),
        ("X --disable-log-requests --enforce-eager --guided-decoding-backend auto", "X"),
        ("X --guided-decoding-backend guidance", "X"),
        ("X --structured_outputs_config.backend=llguidance", "X"),
        ('X --allowed-origins ["a","b"]', "X --allow-origin a --allow-origin b"),
        ("X --load-format auto --pipeline-parallel-size 1", "X"),
        (
            "X --backend vllm --gpu-memory-utilization 0.8 --enforce-eager",
            "X --backend vllm --backend-option gpu_memory_utilization=0.8 --backend-option enforce_eager=true",
        ),
        ("X -- --model Y", "X -- --model Y"),
        ("X --prefix-cache --record=a=b", "X --prefix-cache --record=a=b"),
    ],
)  # fmt: skip
def test_what_means_the_same(given: str, ours: str) -> None:
    """It is taken under vLLM's name; what is none of vLLM's stays as it is."""
    assert translate(given.split()) == ours.split()


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("X --gpu-memory-utilization 0.9", "--kv-cache-bytes"),
        ("X --quantization awq", "GGUF"),
        ("X --enable-lora", "merge"),
        ("X --download-dir /tmp", "HF_HOME"),
        ("X --guided-decoding-backend xgrammar", "leave it out"),
        ("X --structured-outputs-config.backend=lm-format-enforcer", "auto, guidance"),
        ("X --allowed-origins {}", "JSON"),
        ("X --max-num-seqs", "--help"),
    ],
)
def test_a_near_miss_says_what_to_do(given: str, advice: str) -> None:
    """Never ignored, never a riddle."""
    with pytest.raises(UsageError) as raised:
        translate(given.split())
    assert any(advice in text for text in (raised.value.message, *raised.value.hints))


def test_the_command_line_takes_them(lmtool: Run) -> None:
    """A near miss ends the command with a sentence and what to do; what means the same gets further."""
    missed = lmtool("serve", "--model", "lmtool-tiny", "--gpu-memory-utilization", "0.9")
    assert missed.returncode == 2
    assert "--kv-cache-bytes" in missed.stderr
    taken = lmtool("serve", "--model", "./nowhere", "--max-model-len", "32", "--disable-log-requests", "--port", "0")
    assert taken.returncode == 8
    assert "no model folder './nowhere'" in taken.stderr
