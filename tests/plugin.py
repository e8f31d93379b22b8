"""A package that brings logits processors, installed for a test by a folder on the path."""

from __future__ import annotations

from pathlib import Path

MODULE = "lmtool_test_plugin"
ENTRIES = """[lmtool.logits_processors]
only = lmtool_test_plugin:Only
louder = lmtool_test_plugin:Louder
broken = lmtool_test_plugin:Broken
narrow = lmtool_test_plugin:Narrow
walk = lmtool_test_plugin:Walk
forget = lmtool_test_plugin:Forget
stumble = lmtool_test_plugin:Stumble
absent = lmtool_test_plugin:NotThere
"""
SOURCE = '''
"""Logits processors of all kinds."""
import math


class Only:
    """Lets nothing but one id come, at every step."""

    def __init__(self, token):
        if not isinstance(token, int):
            raise TypeError("token is an id")
        self.token = token

    def __call__(self, tokens, logits):
        kept = logits[self.token].clone()
        logits.fill_(-math.inf)
        logits[self.token] = kept
        return logits


class Louder:
    """Adds to the id that stands at this step in a list."""

    def __init__(self, ids):
        self.ids = ids

    def __call__(self, tokens, logits):
        louder = logits.clone()
        if len(tokens) < len(self.ids):
            louder[self.ids[len(tokens)]] += 1000.0
        return louder

    def resume(self, tokens):
        pass


class Forget:
    """Makes an id likelier that its state names, into which it takes the last token at each step; never had back."""

    def __init__(self, by=4.0):
        self.state, self.by = 1, by

    def __call__(self, tokens, logits):
        self.take(tokens[-1:])
        logits[self.state % len(logits)] += self.by
        return logits

    def take(self, tokens):
        for token in tokens:
            self.state = (self.state * 31 + token) % 1009


class Walk(Forget):
    """The same, which can be had back."""

    def resume(self, tokens):
        self.take(tokens[:-1])


class Stumble(Forget):
    """The same, which fails at that."""

    def resume(self, tokens):
        raise ValueError(f"{len(tokens)} are too many")


class Broken:
    """Fails at its third step."""

    def __call__(self, tokens, logits):
        if len(tokens) == 2:
            raise ValueError("no more")
        return logits


class Narrow:
    """Gives too few."""

    def __call__(self, tokens, logits):
        return logits[:3]
'''


def install(folder: Path) -> Path:
    """Put it there; return the folder, which belongs on the path."""
    (folder / "lmtool_test_plugin.py").write_text(SOURCE)
    about = folder / "lmtool_test_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lmtool-test-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    return folder
