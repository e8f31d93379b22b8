"""What a worker and its engine share."""

from __future__ import annotations

from pathlib import Path

from lmtool.cli.vllm.scratch import KEY, Scratch, settings_of
from lmtool.cli.vllm.told import Step, Teller
from lmtool.types import ModelInfo


async def test_an_engines_process_finds_everything_there(tmp_path: Path) -> None:
    """The model's description, and a socket."""
    scratch = Scratch(tmp_path)
    folder = scratch.options["additional_config"][KEY]
    scratch.describe(ModelInfo("m", "m", "vllm", vocab_size=9, eos_token_ids=(1, 2)), None)
    told = settings_of(folder)
    assert (told.vocab_size, told.eos_ids, told.tokenizer) == (9, (1, 2), None)
    teller = Teller(scratch.path / "told")
    scratch.told.expect("a")
    assert teller.tell([Step("a", 0)])
    assert scratch.told.step("a", 0).name == "a"
    teller.close()
    scratch.close()
