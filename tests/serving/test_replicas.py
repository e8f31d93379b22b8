"""How workers are started."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from lmtool.core.errors import ResourceError, UsageError
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu.library import Kernels, find_kernels
from lmtool.serving.config import ModelsConfig, ReplicasConfig, ServiceConfig
from lmtool.serving.replicas import commands, device_groups, parse_layout

KERNELS = "required" if isinstance(find_kernels(), Kernels) else "none"
"""What `auto` comes to here."""


def words(command: str) -> list[str]:
    return shlex.split(command.removeprefix("stdio:"))


def test_one_process_needs_no_workers() -> None:
    """As before."""
    assert commands(ReplicasConfig(), ServiceConfig(), {}) == ()


def test_a_worker_gets_all_models() -> None:
    """Those that are named, in their order, behind everything that could be an option."""
    service = ServiceConfig(ModelsConfig("a", extra_models=("b", "-c")))
    assert words(commands(ReplicasConfig(replicas=2), service, {})[0])[-4:] == ["--", "a", "b", "-c"]


def test_a_worker_gets_what_the_server_was_told() -> None:
    """Flags that are not at their defaults; the model last, whatever its name looks like."""
    service = ServiceConfig(
        ModelsConfig("-odd name", ("mine", "yours")),
        EngineConfig(dtype="float32", threads=1, trust_remote_code=True),
        backend=BackendConfig("random", None, ("seed=1",)),
    )
    found = commands(ReplicasConfig(replicas=3), service, {"PATH": "x"})
    assert len(found) == 3
    assert len(set(found)) == 1
    line = words(found[0])
    assert line[: line.index("serve")] == ["env", sys.executable, "-m", "lmtool", "--quiet", "--settings", os.devnull]
    assert line[line.index("serve") :] == [
        *("serve", "--stdio", "--replicas", "1", "--stall-limit", "0"),
        *("--served-model-name", "mine", "--served-model-name", "yours"),
        *("--dtype", "float32", "--kernels", KERNELS, "--threads", "1", "--trust-remote-code"),
        *("--backend", "random", "--backend-option", "seed=1", "--", "-odd name"),
    ]


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_all_workers_compute_alike(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there are C kernels is decided once, and told to each: none falls back to other ways in silence."""
    service = ServiceConfig(engine=EngineConfig(kernels=choice))
    for worker in commands(ReplicasConfig(2), service, {}):
        line = words(worker)
        assert line[line.index("--kernels") + 1] == (KERNELS if choice == "auto" else choice)
    monkeypatch.setenv("CC", "/nowhere/cc")
    find_kernels.cache_clear()
    line = words(commands(ReplicasConfig(2), service, {})[0])
    find_kernels.cache_clear()
    assert line[line.index("--kernels") + 1] == ("none" if choice == "auto" else choice)


def test_variables_are_not_read_again() -> None:
    """A worker that found `LMTOOL_REPLICAS` would have workers of its own."""
    line = words(commands(ReplicasConfig(2), ServiceConfig(), {"LMTOOL_REPLICAS": "2", "LMTOOL_RECORD": "x"})[0])
    assert line[:4] == ["env", "-uLMTOOL_RECORD", "-uLMTOOL_REPLICAS", sys.executable]


def test_a_layout_shares_out_the_devices() -> None:
    """Those that this server may use, none twice."""
    found = commands(ReplicasConfig(layout="2x1"), ServiceConfig(), {"CUDA_VISIBLE_DEVICES": "4, 6,7"})
    assert [word for command in found for word in words(command) if word.startswith("CUDA")] == [
        "CUDA_VISIBLE_DEVICES=4",
        "CUDA_VISIBLE_DEVICES=6",
    ]


def test_vllm_runs_in_its_own_environment() -> None:
    """Always in a worker; our flags in its words, its own options as they are, a layout as tensor parallelism."""
    backend = BackendConfig(
        "vllm", "their-python", ("gpu_memory_utilization=0.5", 'kv_transfer_config={"a": 1}', "q=x")
    )
    service = ServiceConfig(ModelsConfig("org/model"), EngineConfig(max_context=100, dtype="bfloat16"), backend=backend)
    (alone,) = commands(ReplicasConfig(), service, {})
    line = words(alone)
    assert line[:2] == ["env", "their-python"]
    assert Path(line[2]).is_absolute()  # in vLLM's environment there is no lmtool, and in the working folder neither
    settings = json.loads(line[-1])
    assert (settings["model"], settings["name"]) == ("org/model", "org/model")
    assert settings["options"] == {
        "dtype": "bfloat16",
        "max_num_seqs": 256,
        "max_model_len": 100,
        "gpu_memory_utilization": 0.5,
        "kv_transfer_config": {"a": 1},
        "q": "x",
    }
    assert settings["verbose"] is False
    (loud,) = commands(ReplicasConfig(), service, {}, verbose=True)
    assert json.loads(words(loud)[-1])["verbose"] is True
    (pair,) = commands(ReplicasConfig(layout="1x2"), service, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert "CUDA_VISIBLE_DEVICES=0,1" in words(pair)
    assert json.loads(words(pair)[-1])["options"]["tensor_parallel_size"] == 2


def test_groups_are_disjoint() -> None:
    """And too few devices are told with both numbers."""
    assert device_groups(2, 2, ["a", "b", "c", "d", "e"]) == [["a", "b"], ["c", "d"]]
    with pytest.raises(ResourceError, match="2x2 needs 4 CUDA devices, but 3 are visible here"):
        device_groups(2, 2, ["a", "b", "c"])


@pytest.mark.parametrize("text", ["", "2", "0x1", "2x0", "x", "2X2", "-1x1", "999x1"])
def test_layouts_that_make_no_sense(text: str) -> None:
    """Refused with the value."""
    with pytest.raises(UsageError, match="--layout"):
        parse_layout(text)


def test_contradictions() -> None:
    """Replicas and a layout; several devices for an engine of one."""
    with pytest.raises(UsageError, match="contradict"):
        commands(ReplicasConfig(2, "2x1"), ServiceConfig(), {})
    with pytest.raises(UsageError, match="this backend uses one"):
        commands(ReplicasConfig(layout="1x2"), ServiceConfig(), {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert Path(os.devnull).exists()
