"""Stands for xgrammar where it is not installed: holds the texts between quotes of a grammar's root, all of ASCII.

Words in a grammar make it do what the real one may do: `hang`, `crash`, `slow`, `refuse`, `stuck` (nothing may follow).
"""

from __future__ import annotations

import json
import os
import re
import time
from enum import Enum


class VocabType(Enum):
    RAW = 0


class TokenizerInfo:
    def __init__(self, vocabulary, vocab_type, *, stop_token_ids):
        assert vocab_type is VocabType.RAW
        self.vocabulary, self.stop = vocabulary, stop_token_ids


class CompiledGrammar:
    def __init__(self, texts, info, word=""):
        self.texts, self.info, self.word = texts, info, word
        self.memory_size_bytes = 1000 + sum(map(len, texts))

    def serialize_json(self):
        return json.dumps([self.texts, self.word])

    @staticmethod
    def deserialize_json(text, info):
        texts, word = json.loads(text)
        return CompiledGrammar(texts, info, word)


class GrammarCompiler:
    def __init__(self, info, *, max_threads, cache_enabled):
        assert max_threads >= 1
        assert not cache_enabled
        self.info = info

    def compile_grammar(self, text):
        while "hang" in text:
            pass
        if "crash" in text:
            os.abort()
        if "refuse" in text:
            raise RuntimeError("[12:00:00] /x/parser.cc:1: EBNF error: no such thing")
        root = re.search(r"root ::= (.*)", text)[1]
        texts = [json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', root)]
        return CompiledGrammar(texts, self.info, next((word for word in ("slow", "stuck") if word in text), ""))

    def compile_structural_tag(self, text):
        return self.compile_grammar(f"root ::= {json.dumps(json.loads(text)['format']['value'])}")


class GrammarMatcher:
    def __init__(self, compiled, said=()):
        self.compiled, self.said = compiled, list(said)

    @property
    def _so_far(self):
        return b"".join(self.compiled.info.vocabulary[token] for token in self.said)

    def _goes_on(self, token):
        spelled = self.compiled.info.vocabulary[token]
        return bool(spelled) and any(text.encode().startswith(self._so_far + spelled) for text in self.compiled.texts)

    def accept_token(self, token):
        if self.compiled.word == "raise":
            raise RuntimeError("the matcher broke")
        allowed = self._goes_on(token)
        if allowed:
            self.said.append(token)
        return allowed

    def fill_next_token_bitmask(self, mask, row):
        if self.compiled.word == "slow":
            time.sleep(0.06)
        if self.compiled.word == "raise":
            raise RuntimeError("the matcher broke")
        mask[row] = 0
        allowed = [token for token in range(len(self.compiled.info.vocabulary)) if self._goes_on(token)]
        if self.compiled.word == "stuck":
            allowed = []
        elif self.is_completed():
            allowed += self.compiled.info.stop
        for token in allowed:
            mask.view("uint32")[row, token // 32] |= 1 << token % 32

    def fork(self):
        return GrammarMatcher(self.compiled, self.said)

    def is_completed(self):
        return self._so_far.decode() in self.compiled.texts


class BatchGrammarMatcher:
    def __init__(self, max_threads):
        assert max_threads >= 1

    def batch_fill_next_token_bitmask(self, matchers, mask, rows):
        for matcher, row in zip(matchers, rows, strict=True):
            matcher.fill_next_token_bitmask(mask, row)
