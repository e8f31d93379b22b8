"""The file of keys: what it says, and every fault with its line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lmtool.core.errors import FileError
from lmtool.net.access.key_file import parse_keys, read_keys
from lmtool.net.access.keys import Limits, digest_of

CANARY = "canary-secret"
WHOLE = f"""
[address]
connections = 64

[limits]            # of each key that does not say otherwise
streams = 8
queue = 4

[[keys]]
name = "alice"
key = "{CANARY}"
models = ["lmtool-tiny", "Qwen/*"]
priority = 1
watch = true
streams = 2
tokens_per_minute = 1000

[[keys]]
name = "bob@example.org"
hash = "sha256:{hashlib.sha256(b"other").hexdigest().upper()}"
"""


def faults(text: str) -> list[str]:
    """What an error lists, a sentence each."""
    with pytest.raises(FileError) as caught:
        parse_keys(text, "keys.toml")
    assert caught.value.exit_code == 7
    assert CANARY not in caught.value.sentence
    return [caught.value.message, *caught.value.hints]


def test_whole_file() -> None:
    """Keys by secret or hash; limits of all keys, and those of one; nothing shows a secret."""
    ring = parse_keys(WHOLE, "keys.toml")
    alice, bob = ring.keys
    assert ring.address == Limits(connections=64)
    assert (alice.name, alice.models, alice.priority, alice.watch) == ("alice", ("lmtool-tiny", "Qwen/*"), 1, True)
    assert alice.limits == Limits(streams=2, queue=4, tokens_per_minute=1000)
    assert (bob.models, bob.priority, bob.watch, bob.limits) == (None, None, False, Limits(streams=8, queue=4))
    assert ring.find([b"wrong", CANARY.encode()]) is alice
    assert ring.find([b"other"]) is bob
    assert ring.find([]) is ring.find([b"Other"]) is None
    assert CANARY not in repr(ring)
    assert digest_of(CANARY).hex() not in repr(ring)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('[[keys]]\nname = "a"\n', 1, "either key"),
        ('[[keys]]\nname = "a"\nkey = "k"\nhash = "sha256:00"', 4, "either key"),
        ('[[keys]]\nname = "a"\nhash = "sha256:00"', 3, "64 hex digits"),
        (f'[[keys]]\nname = "a"\nkey = "{CANARY} x"', 3, "character that a header cannot carry"),
        ('[[keys]]\nname = "a"\nkey = 7', 3, "is empty"),
        ('[[keys]]\nname = "a b"\nkey = "k"', 2, "name is missing"),
        ('[[keys]]\nname = "a"\nkey = "k"\nstreams = 0', 4, "streams is no whole number"),
        ('[[keys]]\nname = "a"\nkey = "k"\nstreams = true', 4, "streams is no whole number"),
        ('[[keys]]\nname = "a"\nkey = "k"\nmodels = "x"', 4, "no list of names"),
        ('[[keys]]\nname = "a"\nkey = "k"\npriority = 1.5', 4, "no integer"),
        ('[[keys]]\nname = "a"\nkey = "k"\nwatch = 1', 4, "neither true nor false"),
        ('[[keys]]\nname = "a"\nkey = "k"\nstream = 1', 4, "did you mean streams?"),
        (f'[[keys]]\nname = "a"\nkey = "k"\n{CANARY} = 1', 4, "not known here"),
        ('[[keys]]\nname = "a"\nkey = "k"\n\n[[keys]]\nname = "a"\nkey = "l"', 6, "another key has this name"),
        ('[[keys]]\nname = "a"\nkey = "k"\n\n[[keys]]\nname = "b"\nkey = "k"', 7, "another key has this secret"),
        ('[[keys]]\nname = "a"\nkey = "k"\n[adress]\nstreams = 1', 4, "did you mean address?"),
        ('[limits]\nqueues = 1\n[[keys]]\nname = "a"\nkey = "k"', 2, "did you mean queue?"),
        ("keys = 1", 1, "each under a heading"),
        ("", 1, "there is no key"),
        (f'[[keys]]\nname = "a"\nkey = "{CANARY}" x', 3, "this is no TOML"),
        (f'[[keys]]\nname = "a"\nkey = {CANARY}', 3, "this is no TOML"),
        (f'[[keys]]\nname = "a"\nkey = "{CANARY}', 3, "this is no TOML"),
    ],
)
def test_faults(text: str, line: int, says: str) -> None:
    """Each names the file and the line, says what is wrong, and shows no secret."""
    first = faults(text)[0]
    assert first.startswith(f"keys.toml:{line}: "), first
    assert says in first


def test_every_fault_at_once() -> None:
    """In the order of lines."""
    text = '[[keys]]\nname = ""\nkey = ""\nqueue = -1\n[[keys]]\nname = "b"\n'
    assert [one.split(":")[1] for one in faults(text)] == ["2", "3", "4", "5"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names the file, and the reason."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, reason in ((tmp_path / "none", "no such file"), (tmp_path, "is a directory"), (binary, "no UTF-8")):
        with pytest.raises(FileError, match=reason) as caught:
            read_keys(str(path))
        assert str(path) in caught.value.message
