"""The included model as GGUF with its vocabulary, for llama.cpp's server: `tiny_gguf.py REPOSITORY FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT, TARGET = Path(sys.argv[1]), Path(sys.argv[2])
TINY = ROOT / "lmtool/inference/tiny/lmtool-tiny"
SPECIAL, NORMAL = 3, 1


def main() -> None:
    """Write it, by what `bench engine` writes without a vocabulary."""
    import gguf

    sys.path.insert(0, str(ROOT))
    from lmtool.measure.bench.peers.llamacpp_peer import write_gguf

    class Writer(gguf.GGUFWriter):
        def add_tokenizer_model(self, _model: str) -> None:
            tokenizer = json.loads((TINY / "tokenizer.json").read_text())
            added = {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
            vocabulary = tokenizer["model"]["vocab"] | added
            super().add_tokenizer_model("gpt2")
            self.add_tokenizer_pre("smollm")
            names = sorted(vocabulary, key=vocabulary.__getitem__)
            self.add_token_list(names)
            self.add_token_types([SPECIAL if name in added else NORMAL for name in names])
            self.add_token_merges([" ".join(one) for one in tokenizer["model"]["merges"]])
            self.add_bos_token_id(0)
            self.add_eos_token_id(2)
            self.add_add_bos_token(False)

    gguf.GGUFWriter = Writer
    write_gguf(TINY, TARGET, "float32")


main()
