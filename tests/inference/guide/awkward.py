"""A vocabulary of tokens that hold whole names, ends of names and halves of escapes; and draws from it."""

from __future__ import annotations

import random

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lmtool.core.errors import LmtoolError
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend

PARTS = (
    '","a":', '":1,"', '{"a":1,"a":', '"a":', ',"', 'a":', 'a"', "\\u0061", '\\"', '"\\u', "61", "\\u00", "\\u000",
    "0a", '},"', '}],"b":', '1,"a":1,"b":', 'ab":', '","', '":"', '":{"', '":["', '"],"', 'id":', 'x-1":', '"id":1',
    'q\\"t":', '\\"t', 'b":', 'b0":', "b1", "b12", "aa", "bb", "cc", 'bc":', ',"b":', 'null,"', 'true,"a":',
    '"},"a":{"', "\\n", "\\/", "a\\", 'b\\"', '""', '"":', '"":1', '"":1,"":', ', "',
)  # fmt: skip
EOS = 0


def _byte_letters() -> dict[int, str]:
    """What stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def backend() -> ConstraintBackend:
    """ConstraintBackend over all single bytes and the parts; id 0 ends a text."""
    letters = _byte_letters()
    vocabulary = {"</s>": EOS}
    for data in [*(bytes((byte,)) for byte in range(256)), *(part.encode() for part in PARTS)]:
        vocabulary.setdefault("".join(letters[byte] for byte in data), len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("</s>", special=True)])
    return ConstraintBackend(made.to_str(), len(vocabulary), [EOS])


class Walker:
    """Draws tokens that a compiled allows, those with signs of JSON more often than others."""

    def __init__(self, over: ConstraintBackend) -> None:
        self._backend = over
        self._size = over.tokenizer.vocab_size
        self.texts = [over.tokenizer.decode_bytes([token]) for token in range(self._size)]
        self._liked = [
            (0.35, np.array([any(sign in text for sign in b'"{}[],:') for text in self.texts])),
            (0.15, np.array([text.count(b'"') > 1 for text in self.texts])),
            (0.1, np.array([b"\\" in text for text in self.texts])),
        ]

    def walk(self, compiled: CompiledConstraint, rng: random.Random, most: int = 300) -> bytes | None:
        """A text that has come to its end; None for one that has not. Raises what the guide ends with."""
        guide, written = compiled.guide(), b""
        mask = np.zeros((1, (self._size + 31) // 32), np.int32)
        for _ in range(most):
            mask[0] = np.frombuffer(guide.matcher.compute_bitmask(), np.int32)[: mask.shape[1]]
            guide.forbid_repeats(mask[0].view(np.uint32))
            if isinstance(problem := guide.check(), LmtoolError):
                raise problem
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self._size].astype(bool)
            token = int(rng.choice(np.flatnonzero(self._narrowed(bits, rng))))
            guide.advance(token)
            if token == EOS or guide.ended():
                return written + (b"" if token == EOS else self.texts[token])
            written += self.texts[token]
        return None

    def _narrowed(self, bits: np.ndarray, rng: random.Random) -> np.ndarray:
        chance = rng.random()
        for share, liked in self._liked:
            if chance < share and (bits & liked).any():
                return bits & liked
            chance -= share
        return bits
