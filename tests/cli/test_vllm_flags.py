"""Command lines of vLLM and of DotLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmtool.cli.vllm_flags import translate
from lmtool.core.errors import UsageError

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
        ("X --served-model-name a b --port 1", "X --served-model-name a --served-model-name b --port 1"),
        ("X --api-key a --port 1", "X --api-key a --port 1"),
        ("--api-key a X", "--api-key a X"),
        ("X -q fp8", "X --quantize fp8"),
        ("X --quantization=fp8", "X --quantize fp8"),
        ("-q X", "-q X"),
        ("X --quantization gguf --load-format gguf", "X"),
        ("X --backend vllm -q awq", "X --backend vllm --backend-option quantization=awq"),
        ("X --max-logprobs 50", "X --max-logprobs 50"),
        ("X --enable-prefix-caching --no-enable-prefix-caching", "X --prefix-cache --no-prefix-cache"),
        ("X --tensor-parallel-size 1", "X"),
        ("X -tp 2", "X --layout 1x2"),
        ("X --backend vllm -tp 2", "X --backend vllm --backend-option tensor_parallel_size=2"),
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
        ("X --config-format auto --logprobs-mode raw_logprobs --scheduling-policy fcfs", "X"),
        ("X --generation-config vllm", "X --generation-config vllm"),
        ("X --seed 0 --swap-space 4 --block-size 16 --cpu-offload-gb 0 --max-lora-rank 16 --hf-overrides {}", "X"),
        ("X -- --model Y", "X -- --model Y"),
        ("X --prefix-cache --record=a=b", "X --prefix-cache --record=a=b"),
    ],
)  # fmt: skip
def test_what_means_the_same(given: str, ours: str) -> None:
    """It is taken under vLLM's name; what is none of vLLM's stays as it is."""
    assert translate(given.split()) == ours.split()


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("--attention-backend FLASH_ATTN", ["attention_backend=FLASH_ATTN"]),
        ("--trust-remote-code X", ["trust_remote_code=true"]),
        ("--max_num_partial_prefills=2", ["max_num_partial_prefills=2"]),
        ("--long-prefill-token-threshold -1", ["long_prefill_token_threshold=-1"]),
        ("--no-async-scheduling", ["async_scheduling=false"]),
        ("--enable-something", ["enable_something=true"]),
        (
            "--speculative-config.method ngram --port 0 --speculative-config.num_speculative_tokens 3",
            ['speculative_config={"method": "ngram", "num_speculative_tokens": 3}'],
        ),
        ("--gpu-memory-utilization 0.8 --kv-cache-dtype fp8", ["gpu_memory_utilization=0.8", "kv_cache_dtype=fp8"]),
        ("--backend-option a=1 --port 0 --quiet", ["a=1"]),
        ("X --cudagraph-capture-sizes 1 2 4 --port 0", ["cudagraph_capture_sizes=[1, 2, 4]"]),
        ("X -pcp 2 -dph", ["prefill_context_parallel_size=2", "data_parallel_hybrid_lb=true"]),
        ("-ep X", ["enable_expert_parallel=true"]),
    ],
)
def test_the_rest_is_passed_on_to_vllm(given: str, passed: list[str]) -> None:
    """With `--backend vllm` an option that is neither ours nor has a meaning here is its engine's own."""
    own = {"--backend": True, "--backend-option": True, "--port": True, "--quiet": False}
    words = translate(["--backend", "vllm", *given.split()], own)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--backend-option"] == passed
    others = [word for word in words if word.startswith("--") and word not in own]
    assert others == []
    assert ("X" in words) == ("X" in given.split())
    if "--port" in given:
        assert words[words.index("--port") + 1] == "0"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("X --gpu-memory-utilization 0.9", "--kv-cache-bytes"),
        ("X --quantization awq", "--quantize int8"),
        ("X -q awq", "GGUF"),
        ("X -q=gptq_marlin", "GGUF"),
        ("X --api-key a b", "--api-keys FILE"),
        ("--model X --api-key a b c", "--api-keys FILE"),
        ("X --enable-lora", "merge"),
        ("X --download-dir /tmp", "HF_HOME"),
        ("X --guided-decoding-backend xgrammar", "omit it"),
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


@pytest.mark.parametrize(("value", "ours"), [("auto", "auto"), ("fp8", "fp8"), ("fp8_e4m3", "fp8"), ("x", "x")])
def test_keys_and_values_of_eight_bits(value: str, ours: str) -> None:
    """`--kv-cache-dtype` is an option of both; what is not ours is refused by its name."""
    assert translate(["X", "--kv-cache-dtype", value]) == ["X", "--kv-cache-dtype", ours]


def test_underscores_are_dashes() -> None:
    """As vLLM takes `--trust_remote_code`, so does each option here that vLLM has too, with its value or without."""
    own = {"--trust-remote-code": False, "--served-model-name": True, "--port": True}
    words = ["--trust_remote_code", "X", "--served_model_name=a_b", "--port", "1", "--none_of_ours"]
    assert translate(words, own) == [
        *("--trust-remote-code", "X", "--served-model-name", "a_b"),
        *("--port", "1", "--none_of_ours"),
    ]


@pytest.mark.parametrize("letters", ["-pcp", "-dcp", "-n", "-r"])
def test_letters_are_named_in_full(letters: str) -> None:
    """A short option of vLLM's is refused under its long name, not read as letters of ours such as `-p cp`."""
    option, two = translate(["X", letters, "2"])[1:]
    assert option.startswith("--")
    assert two == "2"


def test_a_value_is_no_option() -> None:
    """A value of an option of ours is not read as an option of vLLM's."""
    assert translate(["--record", "-tp", "X"], {"--record": True}) == ["--record", "-tp", "X"]


def test_without_vllm_nothing_is_passed_on() -> None:
    """An option that nobody knows stays, so that it is refused by its name."""
    assert translate(["X", "--attention-backend", "FLASH_ATTN"], {"--port": True}) == [
        "X",
        "--attention-backend",
        "FLASH_ATTN",
    ]


def test_own_options_are_known(lmtool: Run) -> None:
    """The command passes on what is not its own: an option of ours with a bad value is still refused as ours."""
    told = lmtool("serve", "X", "--backend", "vllm", "--attention-backend", "FLASH_ATTN", "--port", "no")
    assert told.returncode == 2
    assert "--port" in told.stderr
    assert "attention" not in told.stderr


def test_the_command_line_takes_them(lmtool: Run) -> None:
    """A near miss ends the command with a sentence and what to do; what means the same gets further."""
    missed = lmtool("serve", "--model", "lmtool-tiny", "--gpu-memory-utilization", "0.9")
    assert missed.returncode == 2
    assert "--kv-cache-bytes" in missed.stderr
    taken = lmtool("serve", "--model", "./nowhere", "--max-model-len", "32", "--disable-log-requests", "--port", "0")
    assert taken.returncode == 8
    assert "no model folder './nowhere'" in taken.stderr
