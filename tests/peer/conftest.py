"""LMQL 0.7.3's own programs, and a tiny model that both sides can load."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PATIENCE = 120.0
VARIABLE = "LMTOOL_LMQL_PYTHON"


@dataclass
class Lmql:
    """The Python of an environment with LMQL."""

    python: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}

    def run(self, script: str, *words: str, cwd: Path) -> Any:
        """What one of the scripts in this folder writes."""
        done = subprocess.run(
            [self.python, str(HERE / script), *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=cwd,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    @contextlib.contextmanager
    def serve(self, folder: Path) -> Iterator[int]:
        """Run LMQL's server on a free port until it is left."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [self.python, "-m", "lmql.cli", "serve-model", str(folder), "--port", str(port)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        said: list[str] = []
        try:
            for line in process.stdout:
                said.append(line)
                if "ready on device" in line:
                    break
            else:
                pytest.fail("LMQL's server did not start:\n" + "".join(said))
            # It goes on talking; what it says has to be taken from it.
            drain = threading.Thread(target=said.extend, args=(process.stdout,), daemon=True)
            drain.start()
            yield port
        finally:
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()


@pytest.fixture(scope="session")
def lmql() -> Lmql:
    """LMQL's programs; the test is skipped where they are not."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with LMQL 0.7.3")
    return Lmql(python)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random GPT-2 of 304 tokens whose files old and new libraries read."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "Say hello to the world. The answer is yes or no. one two three four five"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    end = "<|endoftext|>"
    tokenizer.train_from_iterator(
        [text] * 20, trainers.BpeTrainer(vocab_size=304, special_tokens=[end], initial_alphabet=alphabet)
    )
    pieces = json.loads(tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in pieces["merges"]]
    (folder / "vocab.json").write_text(json.dumps(pieces["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": end, "eos_token": end, "unk_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(pieces["vocab"]),
        n_positions=512,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,  # far enough from uniform that ties are rare
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lmqls_server(lmql: Lmql, tiny_gpt2: Path) -> Iterator[int]:
    """The port of LMQL's own server with the tiny model."""
    with lmql.serve(tiny_gpt2) as port:
        yield port


@pytest.fixture(scope="session")
def our_server(lmql: Lmql, tiny_gpt2: Path, start_server: Any) -> Iterator[int]:
    """The port of `lmtool serve` with the same."""
    with start_server(str(tiny_gpt2), "--dtype", "float32") as process:
        process.expect("ready in")
        yield int(process.url.rstrip("/").rpartition(":")[2])
