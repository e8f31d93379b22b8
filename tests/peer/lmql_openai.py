"""Run by LMQL's Python: queries by its `openai/` backend. Arguments: URL of `/v1`, model folder. Writes JSON.

LMQL takes no Hugging Face tokenizer there, only tiktoken's: the model's own vocabulary is given to it in that form.
"""

import asyncio
import json
import sys
from pathlib import Path

import lmql
import tiktoken
import tiktoken.model
import tiktoken.registry

NAME = "lmtool-tiny"
PATTERN = r"\d|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QUERIES = {
    "plain": """
argmax(max_len=40)
    "The capital of France is[X]"
where len(TOKENS(X)) < 4
""",
    "choice": """
argmax(max_len=40)
    "The capital of France is [X]"
where X in ["Paris", "Rome"]
""",
    "stops at": """
argmax(max_len=64)
    "Once upon a time[X]"
where STOPS_AT(X, ".") and len(TOKENS(X)) < 30
""",
    "distribution": """
argmax(max_len=40)
    "The capital of France is[X]"
distribution
    X in [" Paris", " Rome"]
""",
    "sample": """
sample(temperature=0.8, max_len=40)
    "Once upon a time[X]"
where len(TOKENS(X)) < 6
""",
}


def as_bytes():
    """Character of byte-level vocabularies to byte, as GPT-2 has them."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def register(folder):
    """Make the tokenizer known to tiktoken."""
    tokenizer = json.loads(Path(folder, "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    table = as_bytes()
    vocabulary = tokenizer["model"]["vocab"].items()
    ranks = {bytes(table[c] for c in text): number for text, number in vocabulary if text not in special}
    encoding = tiktoken.Encoding(NAME, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    tiktoken.registry.ENCODINGS[NAME] = encoding
    tiktoken.model.MODEL_TO_ENCODING[NAME] = NAME


async def main(base, folder):
    register(folder)
    model = lmql.model(f"openai/{NAME}", endpoint=f"{base}/completions", timeout=30)
    found = {}
    for name, query in QUERIES.items():
        result = await lmql.run(query, model=model, output_writer=lmql.headless)
        result = result[0] if isinstance(result, list) else result
        found[name] = {"prompt": result.prompt, "variables": result.variables}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


asyncio.run(main(*sys.argv[1:]))
