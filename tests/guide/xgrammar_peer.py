"""Judges texts with xgrammar, in an environment that has it: reads JSON lines on stdin, writes one of booleans each."""

from __future__ import annotations

import json
import sys

import xgrammar as xgr


def main() -> None:
    """For each {"json" | "regex": ..., "texts": [...]}: which texts are whole matches; null where it refuses."""
    vocabulary = [bytes([byte]) for byte in range(256)] + [b"</s>"]
    info = xgr.TokenizerInfo(vocabulary, vocab_type=xgr.VocabType.RAW, stop_token_ids=[256])
    compiler = xgr.GrammarCompiler(info, max_threads=1)
    for line in sys.stdin:
        case = json.loads(line)
        try:
            if "regex" in case:
                compiled = compiler.compile_regex(case["regex"])
            else:
                compiled = compiler.compile_json_schema(
                    json.dumps(case["json"]), any_whitespace=True, strict_mode=False
                )
        except RuntimeError:
            sys.stdout.write("null\n")
            continue
        sys.stdout.write(json.dumps([judge(compiled, text) for text in case["texts"]]) + "\n")


def judge(compiled: object, text: str) -> bool:
    """Whether a text is a whole match."""
    matcher = xgr.GrammarMatcher(compiled)
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(256)


if __name__ == "__main__":
    main()
