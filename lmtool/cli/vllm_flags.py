"""The command line of `vllm serve`, and of DotLLM, in the words of `lmtool serve`; pure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from lmtool.errors import UsageError

RENAMED = {
    "--max-model-len": "--max-context",
    "--max-num-seqs": "--max-streams",
    "--max-num-batched-tokens": "--max-batch-tokens",
    "--kv-cache-memory-bytes": "--kv-cache-bytes",
    "--data-parallel-size": "--replicas",
    "-dp": "--replicas",
    "--api-server-count": "",
}
"""Options with a value that mean the same under another name; those without one are left out."""
SWITCHES = {
    "--enable-prefix-caching": "--prefix-cache",
    "--no-enable-prefix-caching": "--no-prefix-cache",
    "--enable-auto-tool-choice": "",
    "--exclude-tools-when-tool-choice-none": "",
    "--enable-chunked-prefill": "",
    "--enable-prompt-tokens-details": "",
    "--disable-frontend-multiprocessing": "",
    "--disable-log-requests": "",
    "--no-enable-log-requests": "",
    "--disable-log-stats": "",
    "--disable-uvicorn-access-log": "",
}
"""Options without a value; those that are always so here are left out."""
ENGINE = {
    "--gpu-memory-utilization": "give the memory for keys and values in bytes: --kv-cache-bytes N",
    "--quantization": "serve weights that are quantized already: a GGUF file with --backend llamacpp",
    "--block-size": "leave it out: the size of cache blocks is chosen here",
    "--swap-space": "leave it out: nothing is swapped",
    "--cpu-offload-gb": "leave it out: weights stay on one device",
    "--speculative-config": "leave it out: drafts are made without a second model",
    "--load-format": "leave it out: safetensors are read",
    "--max-lora-rank": "merge the adapter into the weights",
    "--pipeline-parallel-size": "leave it out, or --backend vllm",
    "-pp": "leave it out, or --backend vllm",
    "--distributed-executor-backend": "leave it out, or --backend vllm",
    "--seed": "send seed with the request: without one each answer draws its own",
}
"""vLLM's options with a value that this engine lacks, and what to do; `--backend vllm` takes them as they are."""
ENGINE_SWITCHES = {
    "--enforce-eager": "",
    "--enable-lora": "merge the adapter into the weights",
    "--enable-expert-parallel": "leave it out, or --backend vllm",
    "--enable-sleep-mode": "models leave memory by --idle-unload SECONDS",
}
"""The same without a value; those with nothing to do mean nothing here."""
ELSEWHERE = {
    "--download-dir": "set HF_HOME in the environment",
    "--hf-token": "set HF_TOKEN in the environment",
    "--lora-modules": "merge the adapter into the weights, and serve the folder",
    "--ssl-ca-certs": "clients show keys, not certificates: --api-key",
    "--ssl-cert-reqs": "clients show keys, not certificates: --api-key",
    "--middleware": "put a proxy in front",
    "--logits-processors": "constraints hold streams to a form: structured_outputs in the request",
    "--chat-template-kwargs": "send chat_template_kwargs with the request",
    "--default-chat-template-kwargs": "send chat_template_kwargs with the request",
    "--override-generation-config": "send the parameters with the request",
}
"""Options that this program has in another place."""
FIXED: Mapping[str, frozenset[str]] = {
    "--tokenizer-mode": frozenset({"auto", "hf"}),
    "--response-role": frozenset({"assistant"}),
    "--chat-template-content-format": frozenset({"auto", "string"}),
    "--config-format": frozenset({"auto", "hf"}),
    "--model-impl": frozenset({"auto"}),
    "--convert": frozenset({"auto", "none"}),
    "--scheduling-policy": frozenset({"fcfs", "priority"}),
    "--logprobs-mode": frozenset({"raw_logprobs"}),
    "--safetensors-load-strategy": frozenset({"lazy", "eager"}),
    "--hf-overrides": frozenset({"{}"}),
    "--limit-mm-per-prompt": frozenset({"{}"}),
    "--runner": frozenset({"auto", "generate"}),
    "--task": frozenset({"auto", "generate"}),
    "--guided-decoding-backend": frozenset({"auto", "guidance", "llguidance"}),
    "--structured-outputs-config.backend": frozenset({"auto", "guidance", "llguidance"}),
}
"""Options that have these values here, and no other."""
DEFAULTS: Mapping[str, frozenset[str]] = {
    "--block-size": frozenset({"16"}),
    "--swap-space": frozenset({"4", "0"}),
    "--cpu-offload-gb": frozenset({"0"}),
    "--load-format": frozenset({"auto", "safetensors"}),
    "--max-lora-rank": frozenset({"16"}),
    "--pipeline-parallel-size": frozenset({"1"}),
    "-pp": frozenset({"1"}),
    "--seed": frozenset({"0"}),
}
"""Values of `ENGINE`'s options that ask for nothing."""
PASSED_SWITCHES = frozenset(
    f"--{name}"
    for name in (
        "allow-deprecated-quantization", "async-scheduling", "calculate-kv-scales", "disable-cascade-attn",
        "disable-custom-all-reduce", "disable-hybrid-kv-cache-manager", "disable-sliding-window", "enable-dbo",
        "enable-eplb", "enable-mm-embeds", "enable-prompt-embeds", "language-model-only", "skip-mm-profiling",
        "trust-remote-code",
    )
)  # fmt: skip
"""vLLM's options without a value that `--backend vllm` takes; any other one has a value, where a word follows it."""
VLLM = "vllm"
_NUMBER = re.compile(r"-\d[\d.eE+-]*")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
_FACTORS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def translate(words: Sequence[str], own: Collection[str] = ()) -> list[str]:
    """Return the words behind `serve` with vLLM's options in ours; others, and what is behind `--`, stay.

    own: all options of `serve`. With them, and with `--backend vllm`, those that are neither are passed on to vLLM's
    engine, as options of the backend.

    Raises `UsageError` for an option that only looks the same, with what to do instead.
    """
    end = words.index("--") if "--" in words else len(words)
    given = _Words(words[:end], own)
    return [*(word for part in given for word in part), *words[end:]]


class _Words:
    """The words of a command line, read from the left."""

    def __init__(self, words: Sequence[str], own: Collection[str]) -> None:
        self._left = list(words)
        self._own = own
        self._parts: dict[str, dict[str, object]] = {}
        """Members of options that are objects, given one by one as `--option.member`."""
        self._vllm = _names_vllm(words)
        self._model = any(word == "--model" or word.startswith("--model=") for word in words)

    def __iter__(self) -> Iterator[list[str]]:
        """What each option, or each other word, becomes."""
        while self._left:
            word = self._left.pop(0)
            name, equals, value = word.partition("=")
            name = name.replace("_", "-") if name.startswith("--") else name  # vLLM takes both
            if name.startswith("-") and equals:
                self._left.insert(0, value)
            read = self._reader(name)
            if read is None and equals and name.startswith("-"):
                self._left.pop(0)
            yield [word] if read is None else read(name)
        for option, members in self._parts.items():
            yield _backend_option(option, json.dumps(members))

    def _reader(self, name: str) -> Callable[[str], list[str]] | None:
        readers: list[tuple[object, Callable[[str], list[str]]]] = [
            (("--model",), lambda name: [self._value(name)]),
            (("--served-model-name",) if self._model else (), self._names),
            (("--allowed-origins",), self._origins),
            (("--tensor-parallel-size", "-tp"), self._devices),
            (SWITCHES, lambda name: [SWITCHES[name]] if SWITCHES[name] else []),
            (RENAMED, self._renamed),
            (("--kv-cache-dtype",), self._cache_dtype),
            (ENGINE, self._engine),
            (ENGINE_SWITCHES, self._engine_switch),
            (ELSEWHERE, lambda name: _refuse(name, ELSEWHERE[name])),
            (FIXED, self._fixed),
            ((name,) if self._is_passed_on(name) else (), self._pass_on),
        ]
        return next((read for names, read in readers if name in names), None)  # type: ignore[operator] # containers all

    def _is_passed_on(self, name: str) -> bool:
        return self._vllm and bool(self._own) and name.startswith("--") and len(name) > 2 and name not in self._own

    def _pass_on(self, name: str) -> list[str]:
        """An option that only vLLM knows, with its value, or as a switch."""
        option, _, member = name.partition(".")
        value = "true"
        if name.startswith("--no-"):
            option, value = f"--{name.removeprefix('--no-')}", "false"
        elif name not in PASSED_SWITCHES and self._left and _is_value(self._left[0]):
            value = self._left.pop(0)
        if not member or value == "false":
            return _backend_option(option, value)
        self._parts.setdefault(option, {})[member.replace("-", "_")] = _json(value)
        return []

    def _value(self, name: str) -> str:
        if not self._left:
            raise UsageError(f"{name} needs a value", "see: lmtool serve --help")
        return self._left.pop(0)

    def _names(self, name: str) -> list[str]:
        """Names up to the next option; `--model` tells that none of them is the model."""
        words = [name, self._value(name)]
        while self._left and not self._left[0].startswith("-"):
            words += [name, self._left.pop(0)]
        return words

    def _origins(self, name: str) -> list[str]:
        value = self._value(name)
        try:
            origins = json.loads(value)
        except ValueError:
            origins = [value]
        if not isinstance(origins, list):
            raise UsageError(f"{name} {value!r} is no JSON list", "such as --allowed-origins '[\"https://one.org\"]'")
        return [word for origin in origins for word in ("--allow-origin", str(origin))]

    def _devices(self, name: str) -> list[str]:
        """A layout of this machine's devices; vLLM itself knows what else it may split a model over."""
        value = self._value(name)
        if value == "1":
            return []
        return _backend_option("--tensor-parallel-size", value) if self._vllm else ["--layout", f"1x{value}"]

    def _renamed(self, name: str) -> list[str]:
        value = self._value(name)
        if name == "--max-model-len" and value in {"-1", "auto"}:
            return []
        return [RENAMED[name], _number(value)] if RENAMED[name] else []

    def _engine(self, name: str) -> list[str]:
        value = self._value(name)
        if self._vllm:
            return _backend_option({"-pp": "--pipeline-parallel-size"}.get(name, name), value)
        return [] if value in DEFAULTS.get(name, ()) else _refuse(name, ENGINE[name])

    def _cache_dtype(self, name: str) -> list[str]:
        """An option of both; vLLM has more values, and two names for one of ours."""
        value = self._value(name)
        if self._vllm:
            return _backend_option(name, value)
        return [name, "fp8" if value == "fp8_e4m3" else value]

    def _engine_switch(self, name: str) -> list[str]:
        if self._vllm:
            return _backend_option(name, "true")
        return _refuse(name, ENGINE_SWITCHES[name]) if ENGINE_SWITCHES[name] else []

    def _fixed(self, name: str) -> list[str]:
        value = self._value(name)
        if value not in FIXED[name]:
            raise UsageError(f"{name} is {value!r}; here it is {', '.join(sorted(FIXED[name]))}", "leave it out")
        return []


def _backend_option(name: str, value: str) -> list[str]:
    return ["--backend-option", f"{name[2:].replace('-', '_')}={value}"]


def _is_value(word: str) -> bool:
    return not word.startswith("-") or _NUMBER.fullmatch(word) is not None


def _json(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _names_vllm(words: Sequence[str]) -> bool:
    return f"--backend={VLLM}" in words or ("--backend", VLLM) in itertools.pairwise(words)


def _number(text: str) -> str:
    """A number as vLLM takes it: 32k is 32,000 and 32K is 32,768."""
    match = _HUMAN.fullmatch(text)
    return str(int(float(match[1]) * _FACTORS[match[2]])) if match else text


def _refuse(name: str, advice: str) -> list[str]:
    raise UsageError(f"{name} is an option of vLLM that lmtool does not have under this name", advice)
