"""Make the embedded model: tokenizer, weights and configurations, from nothing but this folder.

    python -m lmtool.tiny.recipe.train --work tiny-training --out lmtool/tiny/lmtool-tiny

An interrupted run resumes from its last checkpoint. Two runs do not give the same bits: sums of floats depend on the
machine and its number of threads.

Letters in the shapes: B rows of a batch, T tokens of a row, V tokens of the tokenizer_recipe.
"""

import argparse
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import Parameter, functional
from transformers import LlamaConfig, LlamaForCausalLM

from lmtool.tiny.path import MODEL_DIR
from lmtool.tiny.recipe.corpus import documents
from lmtool.tiny.recipe.document import Document
from lmtool.tiny.recipe.evaluate import scores
from lmtool.tiny.recipe.tokenizer import CONTEXT, save_tokenizer, train_tokenizer

log = logging.getLogger("lmtool.tiny.recipe.train")

VALIDATION_SEED = 1_000_003
ADAM_RATE = 0.15
"""Learning rate of embedding and norms, as a share of that of the matrices."""
WARM_STEPS = 40
"""Steps of the learning rate's warm-up."""
WIDE_FROM = 0.92
"""Share of the run, 0 to 1, after which rows are twice as long and half as many."""
LOOKAHEAD = 48
"""Documents among which the next one of a row is chosen, to leave little padding."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run; each field is an option of the command line."""

    work: Path = Path("tiny-training")
    """Folder for checkpoints."""
    out: Path = MODEL_DIR
    """Folder for the finished model."""
    tokens: int = 14_000_000
    """Tokens to read, padding included."""
    minutes: float = 0.0
    """Time limit in minutes; 0 for none."""
    rows: int = 12
    """Rows of a batch."""
    width: int = 256
    """Tokens of a row, before the last part of the run."""
    texts: int = 20_000
    """Documents to train the tokenizer on."""
    seed: int = 7
    """Seed of documents and first weights."""
    threads: int = 2
    """Threads of torch."""
    rate: float = 0.02
    """Learning rate of the matrices; the embedding and the norms have a lower one."""
    decay_from: float = 0.45
    """Share of the run, 0 to 1, after which the learning rate falls linearly to 0."""
    save_seconds: float = 120.0
    """Seconds between checkpoints."""
    layers: int = 4
    """Transformer blocks."""
    hidden: int = 256
    """Width of the residual stream, a multiple of 128."""


@dataclass(slots=True)
class Progress:
    """Progress of a run."""

    tokens: int = 0
    seconds: float = 0.0

    def share(self, settings: Settings) -> float:
        """Return the finished share of the run, 0 to 1: of its tokens or of its time, whichever is larger."""
        timed = self.seconds / (60 * settings.minutes) if settings.minutes else 0.0
        return max(timed, self.tokens / settings.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed documents."""

    ids: Tensor
    """[B, T] int64."""
    is_target: Tensor
    """[B, T] bool, true where the model is trained to write this token."""
    document: Tensor
    """[B, T] int64, number of the document within the row; padding has numbers of its own."""


class Muon:
    """Muon as in torch.optim, but in float32 and for all matrices of one shape at once.

    torch.optim.Muon orthogonalises in bfloat16, one matrix at a time: 3.4 times slower on a processor without
    bfloat16 arithmetic.
    """

    def __init__(self, matrices: list[Parameter], *, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.averages = [torch.zeros_like(matrix) for matrix in matrices]
        self._by_shape: dict[tuple[int, ...], list[tuple[Parameter, Tensor]]] = defaultdict(list)
        for matrix, average in zip(matrices, self.averages, strict=True):
            self._by_shape[tuple(matrix.shape)].append((matrix, average))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every matrix against its orthogonalised gradient."""
        for (rows, columns), same in self._by_shape.items():
            updates = orthogonal(torch.stack([self._nesterov(matrix, average) for matrix, average in same]))
            for (matrix, _), update in zip(same, updates, strict=True):
                matrix.mul_(1 - rate * self.weight_decay)
                matrix.add_(update, alpha=-rate * max(1.0, rows / columns) ** 0.5)

    def _nesterov(self, matrix: Parameter, average: Tensor) -> Tensor:
        assert matrix.grad is not None
        average.lerp_(matrix.grad, 1 - self.momentum)
        return matrix.grad.lerp(average, self.momentum)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return about U V^T of each matrix's singular value decomposition U S V^T, by Newton-Schulz steps.

    matrices: [N, rows, columns] float32. Returns the same shape.
    """
    tall = matrices.size(-2) > matrices.size(-1)
    result: Tensor = matrices.mT if tall else matrices
    result = result / result.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = result @ result.mT
        result = 3.4445 * result + (-4.775 * square + 2.0315 * square @ square) @ result
    return result.mT if tall else result


def new_model(settings: Settings, vocab_size: int) -> LlamaForCausalLM:
    """Return the model with random weights."""
    torch.manual_seed(settings.seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=settings.hidden,
        intermediate_size=settings.hidden * 9 // 4,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.hidden // 64,
        num_key_value_heads=settings.hidden // 128,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=[0, 2],
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


Encoded = tuple[list[int], list[bool]]
"""A document's token ids, and which of them are targets."""


def encode(tokenizer: Tokenizer, document: Document) -> Encoded:
    """Return a document's token ids, and which of them are targets."""
    ids: list[int] = []
    is_target: list[bool] = []
    for segment in document.segments():
        tokens = tokenizer.encode(segment.text).ids
        ids += tokens
        is_target += [segment.is_target] * len(tokens)
    return ids, is_target


def batches(tokenizer: Tokenizer, seed: int, rows: int, width: int) -> Iterator[Batch]:
    """Yield batches for ever; a document that is longer than a row is cut."""
    source = (encode(tokenizer, document) for document in documents(seed))
    waiting = list(islice(source, LOOKAHEAD))
    while True:
        batch = Batch(
            torch.zeros(rows, width, dtype=torch.long),
            torch.zeros(rows, width, dtype=torch.bool),
            torch.arange(1, width + 1).neg().repeat(rows, 1),
        )
        for row in range(rows):
            _fill_row(batch, row, waiting, source)
        yield batch


def _fill_row(batch: Batch, row: int, waiting: list[Encoded], source: Iterator[Encoded]) -> None:
    width = batch.ids.size(1)
    at, number = 0, 0
    while at < width:
        room = width - at
        fitting = [place for place, (ids, _) in enumerate(waiting) if at == 0 or len(ids) <= room]
        if not fitting:
            return
        place = fitting[0] if room > width // 4 else max(fitting, key=lambda place: len(waiting[place][0]))
        ids, is_target = waiting.pop(place)
        waiting.append(next(source))
        end = min(at + len(ids), width)
        batch.ids[row, at:end] = torch.tensor(ids[: end - at])
        batch.is_target[row, at:end] = torch.tensor(is_target[: end - at])
        batch.document[row, at:end] = number
        at, number = end, number + 1


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return the mean loss over the target tokens, in nats; documents of a row do not attend to each other."""
    width = batch.ids.size(1)
    visible = (batch.document[:, :, None] == batch.document[:, None, :]) & torch.ones(
        width, width, dtype=torch.bool
    ).tril()
    mask = torch.zeros(visible.shape).masked_fill_(~visible, torch.finfo(torch.float32).min)[:, None]
    hidden = model.model(input_ids=batch.ids, attention_mask=mask, use_cache=False).last_hidden_state
    targets = batch.is_target[:, 1:] & (batch.document[:, 1:] == batch.document[:, :-1])
    return functional.cross_entropy(model.lm_head(hidden[:, :-1][targets]), batch.ids[:, 1:][targets])


@torch.no_grad()
def validation_loss(model: LlamaForCausalLM, tokenizer: Tokenizer, count: int = 6) -> float:
    """Return the mean loss, in nats, on `count` batches that are not trained on."""
    losses = [float(batch_loss(model, batch)) for batch in islice(batches(tokenizer, VALIDATION_SEED, 12, 256), count)]
    return sum(losses) / len(losses)


class Run:
    """A training run: weights, optimizers, progress."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.progress = Progress()
        settings.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer()
        self.model = new_model(settings, self.tokenizer.get_vocab_size())
        matrices = [parameter for parameter in self.model.model.layers.parameters() if parameter.ndim == 2]
        matrix_ids = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in matrix_ids]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
        self.checkpoint = settings.work / "checkpoint.pt"
        if self.checkpoint.exists():
            self._load()

    def train(self) -> None:
        """Train until the tokens or the time are used up, with checkpoints."""
        while self.progress.share(self.settings) < 1:
            self._train_until_checkpoint()
            self._save()

    def _train_until_checkpoint(self) -> None:
        start = time.monotonic()
        wide = 2 if self.progress.share(self.settings) >= WIDE_FROM else 1
        seed = self.settings.seed + self.progress.tokens
        for batch in batches(self.tokenizer, seed, self.settings.rows // wide, self.settings.width * wide):
            self._step(batch)
            if time.monotonic() - start > self.settings.save_seconds or self.progress.share(self.settings) >= 1:
                return

    def _step(self, batch: Batch) -> None:
        start = time.monotonic()
        rate = self.settings.rate * self._rate_share(batch.ids.numel())
        loss: Any = batch_loss(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step(rate)
        self.adam.param_groups[0]["lr"] = ADAM_RATE * rate
        self.adam.step()
        self.model.zero_grad()
        self.progress.tokens += batch.ids.numel()
        self.progress.seconds += time.monotonic() - start

    def _rate_share(self, step_tokens: int) -> float:
        """Return the current share of the learning rate: a short rise, a long plateau, a fall to 0."""
        rise = (self.progress.tokens / step_tokens + 1) / WARM_STEPS
        fall = (1 - self.progress.share(self.settings)) / (1 - self.settings.decay_from)
        return max(0.0, min(1.0, rise, fall))

    def _tokenizer(self) -> Tokenizer:
        path = self.settings.work / "tokenizer.json"
        if not path.exists():
            save_tokenizer(train_tokenizer(self.settings.seed, texts=self.settings.texts), self.settings.work)
        return Tokenizer.from_file(str(path))

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "muon": self.muon.averages,
            "adam": self.adam.state_dict(),
            "tokens": self.progress.tokens,
            "seconds": self.progress.seconds,
        }
        unfinished = self.checkpoint.with_suffix(".new")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)
        loss = validation_loss(self.model, self.tokenizer)
        minutes = self.progress.seconds / 60
        log.info("%.2fM tokens, %.1f min, validation loss %.4f", self.progress.tokens / 1e6, minutes, loss)

    def _load(self) -> None:
        state = torch.load(self.checkpoint)
        self.model.load_state_dict(state["model"])
        for average, saved in zip(self.muon.averages, state["muon"], strict=True):
            average.copy_(saved)
        self.adam.load_state_dict(state["adam"])
        self.progress = Progress(state["tokens"], state["seconds"])
        log.info("resuming from %.2fM tokens", self.progress.tokens / 1e6)

    def export(self) -> None:
        """Write the finished model: weights stored as float16 to be small, computed in float32."""
        out = self.settings.out
        out.mkdir(parents=True, exist_ok=True)
        finished: Any = new_model(self.settings, self.tokenizer.get_vocab_size())
        finished.load_state_dict(self.model.state_dict())
        finished.to(dtype=torch.float16).save_pretrained(out)
        (out / "model.safetensors").chmod(0o644)
        path = out / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        generation = {"bos_token_id": 0, "eos_token_id": [0, 2], "pad_token_id": 0}
        (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
        save_tokenizer(self.tokenizer, out)


def settings_from(arguments: Sequence[str] | None = None) -> Settings:
    """Return the settings from the command line."""
    parser = argparse.ArgumentParser(prog="python -m lmtool.tiny.recipe.train", description="Make the embedded model.")
    for field in fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        kind = Path if isinstance(field.default, Path) else type(field.default)
        parser.add_argument(option, type=kind, default=field.default)
    return Settings(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or resume training; write the model, then log its scores."""
    settings = settings_from(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(settings.threads)
    run = Run(settings)
    run.train()
    run.export()
    scores(settings.out)


if __name__ == "__main__":
    main()
