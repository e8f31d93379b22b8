"""mistral.rs through its Python package, on the checkpoint itself with a tokenizer that has a word for each id."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Auto", "int4": "Auto"}
"""Our names to its `ModelDType`: what is computed in."""
QUANTIZED = {"int8": "Q8_0", "int4": "Q4_0"}
"""Our names to its in-situ quantizations, those of GGUF."""
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
EOS = "<eos>"
ADDED = ("single_word", "lstrip", "rstrip", "normalized")
FILES = ("*.safetensors", "*.safetensors.index.json")


class Peer:
    """A runner whose engine batches open streams, unless it is quantized. It takes and gives texts only."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `work`, `dtype`, `threads`, `streams` (most at once)."""
        os.environ["RAYON_NUM_THREADS"] = str(settings["threads"])  # read when the first product is computed
        if settings["dtype"] == "float32":
            os.environ["MISTRALRS_CPU_KV_F32"] = "1"  # else its keys and values are float16
        import mistralrs

        self._package, self._dtype = mistralrs, settings["dtype"]
        folder = Path(settings["work"]) / "mistralrs"
        link_with_words(Path(settings["model"]), folder)
        which = mistralrs.Which.Plain(model_id=str(folder), dtype=getattr(mistralrs.ModelDType, DTYPES[self._dtype]))
        quantized = QUANTIZED.get(self._dtype)
        # Its quantized products fail for several prompts at once ("input tensor is not contiguous", 0.9.5).
        at_once = settings["streams"] if quantized is None else 1
        self._runner = mistralrs.Runner(which, max_seqs=at_once, prefix_cache_n=0, in_situ_quant=quantized)

    def about(self) -> dict[str, Any]:
        """Version and dtype."""
        from importlib.metadata import version

        return {"versions": {"mistralrs": version("mistralrs")}, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. Streams, because a call that waits for its whole answer allows no second one meanwhile."""
        requests = [
            self._package.ChatCompletionRequest(
                messages=as_words(prompt),
                model="default",
                max_tokens=output,
                temperature=0.0,
                ignore_eos=True,
                stream=True,
            )
            for prompt in prompts
        ]
        streams = [self._runner.send_chat_completion_request(request) for request in requests]
        texts = ("".join(chunk.choices[0].delta.content or "" for chunk in stream) for stream in streams)
        return [as_ids(text) for text in texts]


def link_with_words(model: Path, folder: Path) -> None:
    """Make a folder with links to a model's weights and configuration, and a tokenizer of our own.

    Ids then survive the way through texts, whatever the model's own tokenizer would join or skip.
    """
    folder.mkdir(exist_ok=True)
    for pattern in FILES:
        for file in model.glob(pattern):
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config |= config.get("rope_parameters") or {}  # mistral.rs looks for them where transformers 4 had them
    size = config["vocab_size"]
    config["eos_token_id"] = size  # one that the model cannot generate
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = {f"\u0120{number}": number for number in range(size)}  # a space, then digits
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": size, "content": EOS, "special": True, **dict.fromkeys(ADDED, False)}],
        "normalizer": None,
        "pre_tokenizer": BYTES,
        "post_processor": None,
        "decoder": BYTES,  # mistral.rs loads no tokenizer without one
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "\u01200"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    template = {"eos_token": EOS, "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(template), encoding="utf-8")


def as_words(ids: list[int]) -> str:
    """Ids as a text of that tokenizer."""
    return " ".join(map(str, ids))


def as_ids(text: str) -> list[int]:
    """Ids of such a text."""
    return [int(word) for word in text.split()]
