"""What llama.cpp makes of GGUF files: `llamacpp_logits.py FOLDER`, run by `test_gguf.py` in llama.cpp's environment.

`FOLDER/task.json`: `exact` (a GGUF file), `formats` (name to llama.cpp's number of a file type), `ids`, `texts`.
Writes `NAME.gguf` and `NAME.npy` (logits [T, V] float32) for each format, and `tokens.json`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

FOLDER = Path(sys.argv[1])


def quantized(exact: str, name: str, kind: int) -> Path:
    """The file in another format."""
    path = FOLDER / f"{name}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = kind, 1
    if llama_cpp.llama_model_quantize(exact.encode(), str(path).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp did not write {name}")
    return path


def opened(path: Path):
    """Model and vocabulary."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    return model, llama_cpp.llama_model_get_vocab(model)


def logits(path: Path, ids: list[int]) -> np.ndarray:
    """After each id, keys and values in float32."""
    model, vocabulary = opened(path)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = 0
    params.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(512, 0, 1)
    batch.n_tokens = len(ids)
    for place, token in enumerate(ids):
        batch.token[place], batch.pos[place] = token, place
        batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, 0, True
    if llama_cpp.llama_decode(context, batch):
        raise RuntimeError("llama.cpp did not compute it")
    size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    rows = [llama_cpp.llama_get_logits_ith(context, place) for place in range(len(ids))]
    return np.stack([np.ctypeslib.as_array(row, shape=(size,)).copy() for row in rows])


def tokens(path: Path, text: str) -> list[int]:
    """Ids of a text, special tokens parsed."""
    _, vocabulary = opened(path)
    room = (llama_cpp.llama_token * (len(text.encode()) + 8))()
    raw = text.encode()
    count = llama_cpp.llama_tokenize(vocabulary, raw, len(raw), room, len(room), True, True)
    return list(room[:count])


def main() -> None:
    """All of the task."""
    task = json.loads((FOLDER / "task.json").read_text())
    llama_cpp.llama_backend_init()
    for name, kind in task["formats"].items():
        path = Path(task["exact"]) if kind is None else quantized(task["exact"], name, kind)
        np.save(FOLDER / f"{name}.npy", logits(path, task["ids"]))
    found = [tokens(Path(task["exact"]), text) for text in task["texts"]]
    (FOLDER / "tokens.json").write_text(json.dumps(found))


main()
