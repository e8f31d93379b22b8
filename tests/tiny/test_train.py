"""The training script still makes a model, from nothing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmtool.tiny.recipe import train
from lmtool.tiny.recipe.corpus import documents
from lmtool.tiny.recipe.evaluate import continuations
from lmtool.tiny.recipe.train import Run, Settings, batches, encode, orthogonal, settings_from


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Settings:
    folder = tmp_path_factory.mktemp("tiny")
    return Settings(
        work=folder / "work", out=folder / "out", tokens=6_000, rows=4, width=64, texts=200, layers=1, hidden=128
    )


@pytest.fixture(scope="module")
def run(small: Settings) -> Run:
    run = Run(small)
    run.train()
    run.export()
    return run


def test_training_lowers_the_loss(small: Settings, run: Run) -> None:
    """A few steps are enough to be better than chance, which is the logarithm of the vocabulary's size."""
    chance = torch.tensor(run.tokenizer.get_vocab_size()).log()
    assert train.validation_loss(run.model, run.tokenizer, count=1) < chance - 0.5
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


def test_rows_keep_documents_apart(run: Run) -> None:
    """A row begins with a document, and the tokens of each document stand together under its number."""
    batch = next(batches(run.tokenizer, 3, rows=4, width=128))
    source = [encode(run.tokenizer, one)[0] for one in islice(documents(3), train.LOOKAHEAD + 50)]
    for ids, document in zip(batch.ids.tolist(), batch.document.tolist(), strict=True):
        first = [token for token, number in zip(ids, document, strict=True) if number == 0]
        assert any(one[: len(first)] == first for one in source)
        assert [number for number in document if number >= 0] == sorted(number for number in document if number >= 0)


def test_orthogonal_brings_singular_values_to_one() -> None:
    """Newton-Schulz steps make each matrix nearly orthogonal, wide or tall."""
    for shape in ((2, 32, 64), (2, 64, 32)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_options_are_the_settings() -> None:
    """Every field of the settings is an option of the same name."""
    assert settings_from([]) == Settings()
    assert settings_from(["--work", "w", "--minutes", "1.5", "--decay-from", "0.5"]) == Settings(
        work=Path("w"), minutes=1.5, decay_from=0.5
    )
    assert train.new_model(Settings(layers=1), 64).config.max_position_embeddings == train.CONTEXT
