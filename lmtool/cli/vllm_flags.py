"""Translates the command line of `vllm serve`, and of DotLLM, to that of `lmtool serve`."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from lmtool.core.errors import UsageError

LETTERS = {
    "-ac": "--attention-config", "-asc": "--api-server-count", "-cc": "--compilation-config",
    "-dc": "--diffusion-config", "-dcp": "--decode-context-parallel-size", "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address", "-dpb": "--data-parallel-backend", "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb", "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb", "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port", "-dpr": "--data-parallel-start-rank", "-ep": "--enable-expert-parallel",
    "-n": "--nnodes", "-pcp": "--prefill-context-parallel-size", "-pp": "--pipeline-parallel-size",
    "-r": "--node-rank", "-sc": "--speculative-config", "-tp": "--tensor-parallel-size",
}  # fmt: skip
"""vLLM's short options, except `-q`, which is `--quiet` here unless a quantization method follows."""
QUANTIZATION_METHODS = frozenset(
    (
        "auto_awq", "auto_gptq", "awq", "awq_marlin", "bitsandbytes", "compressed-tensors", "deepseek_v4_fp8",
        "experts_int8", "fbgemm_fp8", "fp8", "fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "fp_quant", "gguf",
        "gpt_oss_mxfp4", "gptq", "gptq_marlin", "humming", "inc", "int8_per_channel_weight_only", "modelopt",
        "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8", "nvfp4_per_token", "online",
        "quark", "torchao",
    )
)  # fmt: skip
"""Values of vLLM's `--quantization`."""
RENAMED = {
    "--max-model-len": "--max-context",
    "--max-num-seqs": "--max-streams",
    "--max-num-batched-tokens": "--max-batch-tokens",
    "--kv-cache-memory-bytes": "--kv-cache-bytes",
    "--data-parallel-size": "--replicas",
    "--api-server-count": "",
}
"""Options with a value that have another name here; empty: dropped."""
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
"""Options without a value; empty: always on here, dropped."""
ENGINE = {
    "--gpu-memory-utilization": "give the memory for keys and values in bytes: --kv-cache-bytes N",
    "--quantization": "quantize weights of 16 or 32 bits by --quantize int8, int4 or fp8, or serve a GGUF file",
    "--block-size": "omit it: the size of cache blocks is chosen automatically",
    "--swap-space": "omit it: nothing is swapped",
    "--cpu-offload-gb": "omit it: weights stay on one device",
    "--speculative-config": "omit it: drafts need no second model",
    "--load-format": "omit it: safetensors and GGUF files are read",
    "--max-lora-rank": "merge the adapter into the weights",
    "--pipeline-parallel-size": "omit it, or use --backend vllm",
    "--distributed-executor-backend": "omit it, or use --backend vllm",
    "--seed": "send seed with the request; otherwise each answer uses a random one",
}
"""Options with a value that this engine lacks, with advice; `--backend vllm` takes them unchanged."""
ENGINE_SWITCHES = {
    "--enforce-eager": "",
    "--enable-lora": "merge the adapter into the weights",
    "--enable-expert-parallel": "omit it, or use --backend vllm",
    "--enable-sleep-mode": "unload idle models by --idle-unload SECONDS",
}
"""Options without a value that this engine lacks, with advice; empty: no effect here."""
ELSEWHERE = {
    "--download-dir": "set HF_HOME in the environment",
    "--hf-token": "set HF_TOKEN in the environment",
    "--lora-modules": "merge the adapter into the weights, and serve the folder",
    "--ssl-ca-certs": "clients authenticate with keys, not certificates: --api-key",
    "--ssl-cert-reqs": "clients authenticate with keys, not certificates: --api-key",
    "--middleware": "put a proxy in front",
    "--logits-processors": "constrain answers with structured_outputs in the request",
    "--chat-template-kwargs": "send chat_template_kwargs with the request",
    "--default-chat-template-kwargs": "send chat_template_kwargs with the request",
    "--override-generation-config": "send the parameters with the request",
}
"""Options that are set elsewhere here, with advice."""
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
"""Options whose only possible values here are these."""
DEFAULTS: Mapping[str, frozenset[str]] = {
    "--block-size": frozenset({"16"}),
    "--swap-space": frozenset({"4", "0"}),
    "--cpu-offload-gb": frozenset({"0"}),
    "--load-format": frozenset({"auto", "safetensors", "hf", "gguf"}),
    "--max-lora-rank": frozenset({"16"}),
    "--pipeline-parallel-size": frozenset({"1"}),
    "--quantization": frozenset({"gguf"}),
    "--seed": frozenset({"0"}),
}
"""Values of `ENGINE`'s options that have no effect, and are dropped."""
PASSED_SWITCHES = frozenset(
    (
        "allow-deprecated-quantization", "async-scheduling", "calculate-kv-scales", "data-parallel-external-lb",
        "data-parallel-hybrid-lb", "data-parallel-multi-port-external-lb", "disable-cascade-attn",
        "disable-custom-all-reduce", "disable-hybrid-kv-cache-manager", "disable-sliding-window", "enable-dbo",
        "enable-eplb", "enable-mm-embeds", "enable-prompt-embeds", "language-model-only", "skip-mm-profiling",
        "trust-remote-code",
    )
)  # fmt: skip
"""vLLM's options without a value that `--backend vllm` takes; all others take a following word as value."""
VLLM = "vllm"
_NUMBER = re.compile(r"-\d[\d.eE+-]*")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
_FACTORS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def translate(words: Sequence[str], own: Mapping[str, bool] | None = None) -> list[str]:
    """Command line of `serve` with vLLM's options in ours; other words, and those after `--`, unchanged.

    own: the options of `serve`, each with whether it takes a value. With them, and with `--backend vllm`, options that
    neither program's tables know are passed on to vLLM's engine, as options of the backend.

    Raises `UsageError` for an option that vLLM reads in another way, with what to do instead.
    """
    end = words.index("--") if "--" in words else len(words)
    given = _Words(words[:end], own or {})
    return [*(word for part in given for word in part), *words[end:]]


class _Words:
    """Words of a command line, read from the left."""

    def __init__(self, words: Sequence[str], own: Mapping[str, bool]) -> None:
        self._left = list(words)
        self._own = own
        self._parts: dict[str, dict[str, object]] = {}
        """Members of object options, given one by one as `--option.member`."""
        self._vllm = _names_vllm(words)
        self._model = any(word == "--model" or word.startswith("--model=") for word in words)
        """True if a model was named; then further words after an option are its values, as in vLLM."""

    def __iter__(self) -> Iterator[list[str]]:
        """The translation of each option or other word."""
        while self._left:
            word = self._left.pop(0)
            if not word.startswith("-"):
                self._model = True
                yield [word]
                continue
            name, equals, value = word.partition("=")
            name = LETTERS.get(name, name)
            name = name.replace("_", "-") if name.startswith("--") else name  # vLLM takes both
            if equals:
                self._left.insert(0, value)
            read = self._reader(name)
            if read is None:
                yield self._own_option(name, equals) if name in self._own else [self._unknown(name, word, equals)]
            else:
                yield read(name)
        for option, members in self._parts.items():
            yield _backend_option(option, json.dumps(members))

    def _unknown(self, name: str, word: str, equals: str) -> str:
        """An unknown option, unchanged, or in its long form so that the error names it."""
        value = equals + self._left.pop(0) if equals else ""
        return name + value if word.partition("=")[0] in LETTERS else word

    def _own_option(self, name: str, equals: str) -> list[str]:
        """One of our options with its value, which may look like a vLLM option."""
        if equals:
            return [f"{name}={self._left.pop(0)}"]
        return [name, self._left.pop(0)] if self._own[name] and self._left else [name]

    def _reader(self, name: str) -> Callable[[str], list[str]] | None:
        readers: list[tuple[object, Callable[[str], list[str]]]] = [
            (("--model",), lambda name: [self._value(name)]),
            (("--served-model-name",) if self._model else (), self._names),
            (("--api-key",) if self._model else (), self._key),
            (("-q",) if self._left[:1] and self._left[0] in QUANTIZATION_METHODS else (), self._quantization),
            (("--quantization",), self._quantization),
            (("--allowed-origins",), self._origins),
            (("--tensor-parallel-size",), self._devices),
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
        """An option only of vLLM, with its value, or as a switch."""
        option, _, member = name.partition(".")
        value = "true"
        if name.startswith("--no-"):
            option, value = f"--{name.removeprefix('--no-')}", "false"
        elif name[2:] not in PASSED_SWITCHES and self._left and _is_value(self._left[0]):
            values = [self._left.pop(0), *(self._further() if self._model else ())]
            value = values[0] if len(values) == 1 else json.dumps([_json(one) for one in values])
        if not member or value == "false":
            return _backend_option(option, value)
        self._parts.setdefault(option, {})[member.replace("-", "_")] = _json(value)
        return []

    def _value(self, name: str) -> str:
        if not self._left:
            raise UsageError(f"{name} needs a value", "see: lmtool serve --help")
        return self._left.pop(0)

    def _further(self) -> list[str]:
        """Words up to the next option: further values of the current one."""
        words = list(itertools.takewhile(lambda word: not word.startswith("-"), self._left))
        del self._left[: len(words)]
        return words

    def _names(self, name: str) -> list[str]:
        names = [self._value(name), *self._further()]
        return [word for one in names for word in (name, one)]

    def _key(self, name: str) -> list[str]:
        """One key. vLLM takes several; a second one must not be read as a model."""
        key = self._value(name)
        if more := self._further():
            raise UsageError(
                f"{name} takes one key, but {1 + len(more)} words follow it",
                "for several keys: --api-keys FILE; to serve several models, name them before the options",
            )
        return [name, key]

    def _quantization(self, name: str) -> list[str]:
        if self._left[:1] == ["fp8"] and not self._vllm:
            return ["--quantize", self._value(name)]
        return self._engine("--quantization")

    def _origins(self, name: str) -> list[str]:
        value = self._value(name)
        try:
            origins = json.loads(value)
        except ValueError:
            origins = [value]
        if not isinstance(origins, list):
            raise UsageError(
                f"{name} {value!r} is not a JSON list", "such as --allowed-origins '[\"https://one.org\"]'"
            )
        return [word for origin in origins for word in ("--allow-origin", str(origin))]

    def _devices(self, name: str) -> list[str]:
        """A layout of devices; with vLLM, its own option."""
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
            return _backend_option(name, value)
        return [] if value in DEFAULTS.get(name, ()) else _refuse(name, ENGINE[name])

    def _cache_dtype(self, name: str) -> list[str]:
        """An option of both programs; vLLM has more values, and two names for fp8."""
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
            raise UsageError(f"{name} is {value!r}; here it is {', '.join(sorted(FIXED[name]))}", "omit it")
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
    """A number in vLLM's notation: 32k is 32,000 and 32K is 32,768."""
    match = _HUMAN.fullmatch(text)
    return str(int(float(match[1]) * _FACTORS[match[2]])) if match else text


def _refuse(name: str, advice: str) -> list[str]:
    raise UsageError(f"{name} is an option of vLLM that lmtool does not have under this name", advice)
