"""Compiles with xgrammar itself, in an environment that has it: reads JSON lines on stdin, writes one each.

For {"constraint": as LMTP has it, "texts": [...]}: {"error": sentence}, or which texts are whole matches (`judged`),
what was said along random tokens until a text ended (`said`), and what is not held (`warnings`).
"""

from __future__ import annotations

import json
import random
import sys

import numpy as np

from lmtool.constraint import constraint_from
from lmtool.errors import LmtoolError
from lmtool.guide.compiler import MatcherCompiler
from lmtool.guide.config import GuideConfig
from lmtool.guide.templates import read_tokenizer
from lmtool.guide.xgrammar.templates import XgrammarTemplates
from tests.guide.following import EOS, TOKENIZER, VOCAB, mask_of

WALKS, STEPS = 6, 120


def main() -> None:
    """Answer each line."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(threads=1), XgrammarTemplates)
    tokenizer = read_tokenizer(TOKENIZER, VOCAB, EOS)
    for line in sys.stdin:
        case = json.loads(line)
        try:
            guide = compiler.compile(constraint_from(case["constraint"])).result(60)
        except LmtoolError as problem:
            answer = {"error": problem.message}
        else:
            tokens = [tokenizer.tokenize_str(text) for text in case["texts"]]
            judged = [guide.accepts([*ids, EOS[0]]) == len(ids) + 1 for ids in tokens]
            said = [walk(compiler, tokenizer, guide.fork(), seed) for seed in range(WALKS)]
            answer = {"judged": judged, "said": [text for text in said if text is not None], "warnings": guide.warnings}
        sys.stdout.write(json.dumps(answer) + "\n")
    compiler.close()


def walk(compiler, tokenizer, guide, seed):
    """Draw allowed tokens until the text ends, as soon as it may after half of the steps; None where it does not."""
    rng = random.Random(seed)
    drawn = []
    for step in range(STEPS):
        allowed = np.flatnonzero(mask_of(compiler, guide))
        if guide.error() is not None:
            return None
        ends = guide.may_end() and (step > STEPS // 2 or rng.random() < 0.2)
        token = EOS[0] if ends else int(rng.choice(allowed))
        if token in EOS:
            return tokenizer.decode_str(drawn)
        guide.advance(token)
        drawn.append(token)
    return None


if __name__ == "__main__":
    main()
