"""What a worker and its engine share."""

from __future__ import annotations

import os
import subprocess
import sys

from lmtool.cli.vllm.scratch import KEY, Scratch, settings_of
from lmtool.cli.vllm.told import Step, Teller
from lmtool.types import ModelInfo


async def test_an_engines_process_finds_everything_there(monkeypatch):
    """Our package and nothing else of this environment, the model, and a socket; gone when the worker ends."""
    monkeypatch.setenv("PYTHONPATH", "")
    scratch = Scratch()
    folder = scratch.options["additional_config"][KEY]
    scratch.describe(ModelInfo("m", "m", "vllm", vocab_size=9, eos_token_ids=(1, 2)), None)
    told = settings_of(folder)
    assert (told.vocab_size, told.eos_ids, told.tokenizer) == (9, (1, 2), None)
    program = "import lmtool.cli.vllm.extension as e; print(e.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/", env=dict(os.environ)
    )
    assert found.stdout.startswith(folder)
    teller = Teller(scratch.path / "told")
    scratch.told.expect("a")
    assert teller.tell([Step("a", 0)])
    assert scratch.told.step("a", 0).name == "a"
    teller.close()
    scratch.close()
    assert not scratch.path.exists()
