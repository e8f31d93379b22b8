"""Make the embedded model: tokenizer, weights and configurations, from nothing but this folder.

    python -m lmtool.tiny.train --work tiny-training --out lmtool/tiny/lmtool-tiny

A run that is cut off goes on from its last checkpoint when it is started again. Two runs do not give the same bits:
sums of floats depend on the machine and its number of threads.

Letters in the shapes: B rows of a batch, T tokens of a row, V tokens of the vocabulary.
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

from lmtool.tiny import vocabulary
from lmtool.tiny.corpus import documents
from lmtool.tiny.document import Document
from lmtool.tiny.evaluate import categories, judge
from lmtool.tiny.path import MODEL_DIR

log = logging.getLogger("lmtool.tiny.train")

HELD_OUT_SEED = 1_000_003
ADAM_RATE = 0.15
"""Learning rate of embedding and norms, as a share of that of the matrices."""
WARM_STEPS = 40
"""Steps over which the learning rate rises."""
WIDE_FROM = 0.92
"""Share of the run, 0 to 1, after which rows are twice as long and half as many."""
LOOKAHEAD = 48
"""Documents among which the next one of a row is chosen, so that little of the row stays empty."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a run depends on; each field is an option of the command line."""

    work: Path = Path("tiny-training")
    """Folder for checkpoints."""
    out: Path = MODEL_DIR
    """Folder for the finished model."""
    tokens: int = 14_000_000
    """Tokens to read, padding included."""
    minutes: float = 0.0
    """Minutes after which to be done, if the tokens are not read before; 0 for no limit."""
    rows: int = 12
    """Rows of a batch."""
    width: int = 256
    """Tokens of a row, until the last part of the run makes them longer."""
    texts: int = 20_000
    """Documents that the tokenizer is learnt from."""
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
    """How far a run is."""

    tokens: int = 0
    seconds: float = 0.0

    def share(self, settings: Settings) -> float:
        """Return the share of the run that is done, 0 to 1: of its tokens or of its time, whichever is larger."""
        timed = self.seconds / (60 * settings.minutes) if settings.minutes else 0.0
        return max(timed, self.tokens / settings.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed documents."""

    ids: Tensor
    """[B, T] int64."""
    learnt: Tensor
    """[B, T] bool, true where the model is trained to write this token."""
    owner: Tensor
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
    found: Tensor = matrices.mT if tall else matrices
    found = found / found.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = found @ found.mT
        found = 3.4445 * found + (-4.775 * square + 2.0315 * square @ square) @ found
    return found.mT if tall else found


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
        max_position_embeddings=vocabulary.CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=[0, 2],
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


Encoded = tuple[list[int], list[bool]]
"""A document's token ids, and which of them are learnt."""


def encoded(tokenizer: Tokenizer, document: Document) -> Encoded:
    """Return a document's token ids, and which of them are learnt."""
    ids: list[int] = []
    learnt: list[bool] = []
    for segment in document.segments():
        tokens = tokenizer.encode(segment.text).ids
        ids += tokens
        learnt += [segment.learnt] * len(tokens)
    return ids, learnt


def batches(tokenizer: Tokenizer, seed: int, rows: int, width: int) -> Iterator[Batch]:
    """Yield batches for ever; a document that is longer than a row is cut."""
    source = (encoded(tokenizer, document) for document in documents(seed))
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
        ids, learnt = waiting.pop(place)
        waiting.append(next(source))
        end = min(at + len(ids), width)
        batch.ids[row, at:end] = torch.tensor(ids[: end - at])
        batch.learnt[row, at:end] = torch.tensor(learnt[: end - at])
        batch.owner[row, at:end] = number
        at, number = end, number + 1


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return the mean loss, in nats, over the learnt tokens; a document sees nothing of its neighbours in the row."""
    width = batch.ids.size(1)
    seen = (batch.owner[:, :, None] == batch.owner[:, None, :]) & torch.ones(width, width, dtype=torch.bool).tril()
    mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)[:, None]
    hidden = model.model(input_ids=batch.ids, attention_mask=mask, use_cache=False).last_hidden_state
    wanted = batch.learnt[:, 1:] & (batch.owner[:, 1:] == batch.owner[:, :-1])
    return functional.cross_entropy(model.lm_head(hidden[:, :-1][wanted]), batch.ids[:, 1:][wanted])


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, tokenizer: Tokenizer, count: int = 6) -> float:
    """Return the mean loss, in nats, on so many batches that the model never learns from."""
    losses = [float(batch_loss(model, batch)) for batch in islice(batches(tokenizer, HELD_OUT_SEED, 12, 256), count)]
    return sum(losses) / len(losses)


@torch.no_grad()
def replies(model: LlamaForCausalLM, tokenizer: Tokenizer, texts: Sequence[str], limit: int = 240) -> list[str]:
    """Return what the model writes next, for each text: greedy, until it ends by itself or after `limit` tokens."""
    writer: Any = model
    encoded_texts = [tokenizer.encode(text).ids for text in texts]
    order = sorted(range(len(texts)), key=lambda at: len(encoded_texts[at]))
    found: dict[int, str] = {}
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        width = max(len(encoded_texts[at]) for at in chosen)
        rows = [[0] * (width - len(encoded_texts[at])) + encoded_texts[at] for at in chosen]
        seen = [[0] * (width - len(encoded_texts[at])) + [1] * len(encoded_texts[at]) for at in chosen]
        written = writer.generate(
            torch.tensor(rows), attention_mask=torch.tensor(seen), max_new_tokens=limit, do_sample=False
        )
        for at, ids in zip(chosen, written[:, width:].tolist(), strict=True):
            found[at] = tokenizer.decode(ids, skip_special_tokens=True)
    return [found[at] for at in range(len(texts))]


class Run:
    """A training run: weights, optimizers and how far it is."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.progress = Progress()
        settings.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer()
        self.model = new_model(settings, self.tokenizer.get_vocab_size())
        matrices = [parameter for parameter in self.model.model.layers.parameters() if parameter.ndim == 2]
        chosen = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in chosen]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
        self.checkpoint = settings.work / "checkpoint.pt"
        if self.checkpoint.exists():
            self._load()

    def train(self) -> None:
        """Train until the tokens are read or the time is over, saving now and then."""
        while self.progress.share(self.settings) < 1:
            self._stretch()
            self._save()

    def _stretch(self) -> None:
        """Train until the next checkpoint is due."""
        begun = time.monotonic()
        wide = 2 if self.progress.share(self.settings) >= WIDE_FROM else 1
        seed = self.settings.seed + self.progress.tokens
        for batch in batches(self.tokenizer, seed, self.settings.rows // wide, self.settings.width * wide):
            self._step(batch)
            if time.monotonic() - begun > self.settings.save_seconds or self.progress.share(self.settings) >= 1:
                return

    def _step(self, batch: Batch) -> None:
        begun = time.monotonic()
        rate = self.settings.rate * self._warmth(batch.ids.numel())
        loss: Any = batch_loss(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step(rate)
        self.adam.param_groups[0]["lr"] = ADAM_RATE * rate
        self.adam.step()
        self.model.zero_grad()
        self.progress.tokens += batch.ids.numel()
        self.progress.seconds += time.monotonic() - begun

    def _warmth(self, step_tokens: int) -> float:
        """Return the learning rate of now as a share of the full one: a short rise, a long plateau, a fall to 0."""
        rise = (self.progress.tokens / step_tokens + 1) / WARM_STEPS
        fall = (1 - self.progress.share(self.settings)) / (1 - self.settings.decay_from)
        return max(0.0, min(1.0, rise, fall))

    def _tokenizer(self) -> Tokenizer:
        path = self.settings.work / "tokenizer.json"
        if not path.exists():
            vocabulary.save(vocabulary.learn(self.settings.seed, texts=self.settings.texts), self.settings.work)
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
        loss = held_out_loss(self.model, self.tokenizer)
        minutes = self.progress.seconds / 60
        log.info("%.2fM tokens, %.1f min, held-out loss %.4f", self.progress.tokens / 1e6, minutes, loss)

    def _load(self) -> None:
        state = torch.load(self.checkpoint)
        self.model.load_state_dict(state["model"])
        for average, kept in zip(self.muon.averages, state["muon"], strict=True):
            average.copy_(kept)
        self.adam.load_state_dict(state["adam"])
        self.progress = Progress(state["tokens"], state["seconds"])
        log.info("going on from %.2fM tokens", self.progress.tokens / 1e6)

    def export(self) -> None:
        """Write the finished model: weights as float16 to be small, to be computed with as float32."""
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
        vocabulary.save(self.tokenizer, out)


def report(folder: Path) -> None:
    """Log how the model in the folder does in each category, with some of its failures."""
    model = LlamaForCausalLM.from_pretrained(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for result in judge(categories(), lambda texts: replies(model, tokenizer, texts)):
        verdict = "" if result.passed else f"  misses {result.category.needed:.0%}"
        log.info("%6.1f %%  %s of %d%s", 100 * result.share, result.category.name, len(result.category.cases), verdict)
        for text, said in result.failures[:8]:
            log.info("            %r -> %r", text, said)


def settings_from(arguments: Sequence[str] | None = None) -> Settings:
    """Return the settings that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m lmtool.tiny.train", description="Make the embedded model.")
    for field in fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        kind = Path if isinstance(field.default, Path) else type(field.default)
        parser.add_argument(option, type=kind, default=field.default)
    return Settings(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or go on training; write the model, then tell how good it is."""
    settings = settings_from(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(settings.threads)
    run = Run(settings)
    run.train()
    run.export()
    report(settings.out)


if __name__ == "__main__":
    main()
