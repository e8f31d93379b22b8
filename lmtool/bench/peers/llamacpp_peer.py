"""llama.cpp through llama-cpp-python's plain bindings: one context, a sequence a stream, all logits of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Peer:
    """A llama.cpp context with room for all streams."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder or GGUF file), `work`, `dtype`, `threads`, `streams`, `tokens`.

        A folder is written as GGUF into `work` once a dtype. Raises RuntimeError when llama.cpp refuses the model.
        """
        import llama_cpp
        import numpy as np

        from lmtool.bench.peers.gguf_file import write_gguf

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
        while True:
            for own, token in zip(ids, self._step(parts), strict=True):
                own.append(token)
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
