"""llama.cpp through llama-cpp-python's plain bindings, and the GGUF files that it reads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
"""Our names of dtypes to GGUF's."""


class Peer:
    """One llama.cpp context, with a sequence for each stream and all logits of the batch."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder or GGUF file), `work`, `dtype`, `threads`, `streams`, `tokens`.

        A folder is converted to GGUF in `work`, once for each dtype. Raises RuntimeError when llama.cpp cannot load it.
        """
        import llama_cpp
        import numpy as np

        self._np, self._c = np, llama_cpp
        self._dtype = settings["dtype"]
        path = Path(settings["model"])
        if path.is_dir():
            path = Path(settings["work"]) / f"{self._dtype}.gguf"
            if not path.is_file():
                write_gguf(Path(settings["model"]), path, self._dtype)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path.name}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._context = self._open(settings["threads"], settings["streams"], settings["tokens"])
        self.times: list[list[float]] = []

    def _open(self, threads: int, streams: int, tokens: int) -> Any:
        c = self._c
        params = c.llama_context_default_params()
        params.n_ctx = streams * (-(-tokens // 256) * 256)
        params.n_seq_max = streams
        params.n_batch = max(512, streams * tokens)
        params.n_threads = params.n_threads_batch = threads
        context = c.llama_init_from_model(self._model, params)
        if not context:
            raise RuntimeError(f"llama.cpp has no room for {streams} streams of {tokens} tokens")
        self._capacity = int(params.n_batch)
        self._batch = c.llama_batch_init(self._capacity, 0, 1)
        return context

    def about(self) -> dict[str, Any]:
        """Version and dtype."""
        return {"versions": {"llama-cpp-python": self._c.__version__}, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. Raises RuntimeError when a step fails."""
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)  # noqa: FBT003  # its signature
        ids: list[list[int]] = [[] for _ in prompts]
        parts = [(number, 0, prompt) for number, prompt in enumerate(prompts)]
        steps = list[float]()
        self.times = [steps] * len(prompts)
        while True:
            for own, token in zip(ids, self._step(parts), strict=True):
                own.append(token)
            steps.append(time.perf_counter())
            if len(ids[0]) == output:
                return ids
            parts = [(n, len(prompts[n]) + len(own) - 1, own[-1:]) for n, own in enumerate(ids)]

    def _step(self, parts: list[tuple[int, int, list[int]]]) -> list[int]:
        """The most likely next id of each part: (sequence, position of its first token, tokens)."""
        batch, place, last = self._batch, 0, []
        for sequence, start, tokens in parts:
            for offset, token in enumerate(tokens):
                batch.token[place], batch.pos[place] = token, start + offset
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
                batch.logits[place] = offset == len(tokens) - 1
                place += 1
            last.append(place - 1)
        batch.n_tokens = place
        status = self._c.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama.cpp's step failed with status {status}")
        size = (self._vocab_size,)
        rows = (self._c.llama_get_logits_ith(self._context, index) for index in last)
        return [int(self._np.ctypeslib.as_array(row, shape=size).argmax()) for row in rows]


def write_gguf(folder: Path, path: Path, dtype: str) -> None:
    """Write the model of a folder as GGUF, matrices in `dtype`, without a vocabulary: llama.cpp gets ids only.

    Raises ValueError for another family or dtype. Needs the packages gguf and safetensors.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = config["model_type"]
    if family not in {"llama", "gpt2"} or dtype not in TYPES:
        raise ValueError(f"{family} in {dtype} cannot be written as GGUF here; known: llama and gpt2 in {list(TYPES)}")
    matrix_type = gguf.GGMLQuantizationType[TYPES[dtype]]
    writer = gguf.GGUFWriter(str(path), family)
    (_describe_llama if family == "llama" else _describe_gpt2)(writer, config)
    writer.add_tokenizer_model("none")
    blocks = config["num_hidden_layers" if family == "llama" else "n_layer"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], blocks)
    for name, data in _tensors(folder):
        named = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if named is None:
            raise ValueError(f"{name} has no name in GGUF")
        kind, shaped = gguf.GGMLQuantizationType.F32, _shaped(name, data, config)
        if shaped.ndim == 2 and not name.endswith("wpe.weight"):
            kind = matrix_type
        writer.add_tensor(named, gguf.quants.quantize(shaped, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and float32 numpy arrays."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="np") as stream:
            for name in stream.keys():  # noqa: SIM118  # no mapping
                if not name.endswith((".attn.bias", ".attn.masked_bias")):
                    yield name, stream.get_tensor(name).astype("float32")


def _shaped(name: str, data: Any, config: dict[str, Any]) -> Any:
    """Rows in the order in which llama.cpp rotates them (pairs side by side); GPT-2's matrices as [out, in]."""
    if name.endswith("q_proj.weight"):
        return _interleaved(data, config["num_attention_heads"])
    if name.endswith("k_proj.weight"):
        return _interleaved(data, config.get("num_key_value_heads") or config["num_attention_heads"])
    if ".c_" in name and data.ndim == 2:
        return data.T.copy()
    return data


def _interleaved(data: Any, heads: int) -> Any:
    rows = data.shape[0]
    return data.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(rows, -1)


def _describe_llama(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _describe_gpt2(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(config.get("n_inner") or 4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
