"""The training script still makes a model, from nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from shutil import copytree

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny.recipe import train
from tests.tiny.recipe.batches import Source, batches, part
from tests.tiny.recipe.evaluate import continuations
from tests.tiny.recipe.train import Run, Settings, orthogonal, prefers_bfloat16, settings_from


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Settings:
    folder = tmp_path_factory.mktemp("tiny")
    return Settings(
        work=folder / "work", out=folder / "out", tokens=6_000, batch=256, width=32, texts=200, layers=1, hidden=128
    )


@pytest.fixture(scope="module")
def run(small: Settings) -> Run:
    run = Run(small)
    assert run.train()
    run.export(small.out)
    return run


def test_training_lowers_the_loss(small: Settings, run: Run) -> None:
    """A few steps are enough to be better than chance, which is the logarithm of the vocabulary's size."""
    chance = torch.tensor(run.tokenizer.get_vocab_size()).log()
    assert run.validation_loss(tokens=2_000) < chance - 0.5
    assert run.progress.tokens >= small.tokens


def test_export_is_read_by_transformers(small: Settings, run: Run) -> None:
    """The written folder loads as float32, close to the trained weights."""
    model = AutoModelForCausalLM.from_pretrained(small.out)
    assert model.dtype == torch.float32
    trained = run.model.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, trained[name], atol=1e-2, rtol=1e-3)


def test_a_run_goes_on_from_its_checkpoint(small: Settings, run: Run) -> None:
    """Started again, a run has the tokens, the time and the weights of its last checkpoint."""
    again = Run(small)
    assert again.progress == run.progress
    torch.testing.assert_close(again.model.state_dict(), run.model.state_dict())


def test_replies_end_by_themselves_or_at_the_limit(run: Run) -> None:
    """There is one reply a text, in their order, also when the texts are of different lengths."""
    long, short = "<|im_start|>user\nTell me a story", "Hi"
    written = continuations(run.model, run.tokenizer, [long, short], limit=5)
    alone = continuations(run.model, run.tokenizer, [short], limit=5)
    assert written[1] == alone[0]


def test_rows_keep_documents_apart(small: Settings, run: Run) -> None:
    """A row begins with a document, the tokens of each stand together, and long documents have wide rows."""
    file = small.work / "tokenizer.json"
    documents = {tuple(ids[:64]): len(ids) for number in range(2) for ids, _ in part(file, 3, number)}
    widths = set()
    steps = list(islice(batches(Source(file, 3), tokens=1024, narrow=64, wide=128), 3))
    assert all(sum(batch.ids.numel() for batch in step) in {960, 1024} for step in steps)
    for batch in (batch for step in steps for batch in step):
        widths.add(batch.ids.size(1))
        for ids, document in zip(batch.ids.tolist(), batch.document.tolist(), strict=True):
            first = tuple(token for token, number in zip(ids, document, strict=True) if number == 0)
            assert (documents[first[:64]] <= 64) == (len(ids) == 64)
            numbers = [number for number in document if number >= 0]
            assert numbers == sorted(numbers)
    assert widths == {64, 128}


def test_processes_make_the_same_documents(small: Settings, run: Run) -> None:
    """Documents come in the same order from other processes, and a run goes on with the part after its last one."""
    file = small.work / "tokenizer.json"
    sources = [Source(file, 3, processes=n) for n in (0, 1)]
    alone, together = (list(islice(source, 1_200)) for source in sources)
    for source in sources:
        source.close()
    assert alone == together
    later = Source(file, 3, first=1)
    assert list(islice(later, 200)) == alone[1_000:]
    assert later.number == 2


def test_a_part_of_a_run_ends_and_goes_on(small: Settings, run: Run, tmp_path: Path) -> None:
    """`--pause` ends a part with a checkpoint; the same command goes on with the tokens that are left."""
    copytree(small.work, tmp_path / "work")
    (tmp_path / "work/checkpoint.pt").unlink()
    settings = replace(small, work=tmp_path / "work", out=tmp_path / "out", pause=1e-9, save_seconds=0.0)
    first = Run(settings)
    assert not first.train()
    assert 0 < first.progress.tokens < small.tokens
    again = Run(replace(settings, pause=0.0, save_seconds=60.0))
    assert again.progress == first.progress
    assert again.train()
    assert again.progress.parts > first.progress.parts


def test_orthogonal_brings_singular_values_to_one() -> None:
    """Newton-Schulz steps make each matrix nearly orthogonal, wide or tall."""
    for shape in ((2, 32, 64), (2, 64, 32)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_bfloat16_is_measured() -> None:
    """A processor computes in bfloat16 only where that is faster; a GPU always does."""
    assert prefers_bfloat16(torch.device("cpu")) in {True, False}
    assert prefers_bfloat16(torch.device("cuda"))


def test_options_are_the_settings() -> None:
    """Every field of the settings is an option of the same name."""
    assert settings_from([]) == Settings()
    assert settings_from(["--work", "w", "--minutes", "1.5", "--decay-from", "0.5"]) == Settings(
        work=Path("w"), minutes=1.5, decay_from=0.5
    )
    assert train.new_model(Settings(layers=1), 64).config.max_position_embeddings == train.CONTEXT
