"""Make the embedded model: tokenizer, weights and configurations, from nothing but this folder.

    python -m tests.tiny.recipe.train --work tiny-training --out lmtool/inference/tiny/lmtool-tiny

Takes under 100 minutes on two processor cores; on a GPU, which it uses where there is one, minutes. An interrupted run
goes on from its last checkpoint; `--pause MINUTES` ends a part of it. Two runs do not give the same bits: sums of
floats depend on the machine and its number of threads.

Letters in the shapes: B rows of a batch, T tokens of a row, V tokens of the tokenizer.
"""

import argparse
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import Parameter, functional
from transformers import LlamaConfig, LlamaForCausalLM

from lmtool.inference.tiny.path import MODEL_DIR
from tests.tiny.recipe.batches import Batch, Source, batches
from tests.tiny.recipe.evaluate import Answers, scores
from tests.tiny.recipe.grading import first_prompts, grade, shares
from tests.tiny.recipe.tokenizer import CONTEXT, save_tokenizer, train_tokenizer

log = logging.getLogger("tests.tiny.recipe.train")

VALIDATION_SEED = 1_000_003
VALIDATION_TOKENS = 24_576
ADAM_RATE = 0.15
"""Learning rate of embedding and norms, as a share of that of the matrices."""
WARM_STEPS = 40
"""Steps of the learning rate's warm-up."""
WIDE_FROM = 0.92
"""Share of the run, 0 to 1, after which rows are twice as long and half as many."""
GPU_TIMES = 4
"""How many times as many tokens a batch and the run have on a GPU, in as many steps."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run; each field is an option of the command line."""

    work: Path = Path("tiny-training")
    """Folder for checkpoints."""
    out: Path = MODEL_DIR
    """Folder for the finished model."""
    tokens: int = 25_500_000
    """Tokens to read, padding included."""
    minutes: float = 95.0
    """Time limit of all steps together, in minutes; 0 for none."""
    pause: float = 0.0
    """Minutes after which this part of the run ends with a checkpoint; 0 for none."""
    batch: int = 4096
    """Tokens of a batch, padding included."""
    width: int = 128
    """Tokens of a row of short documents; rows of long ones have twice as many."""
    texts: int = 20_000
    """Documents to train the tokenizer on."""
    seed: int = 7
    """Seed of documents and first weights."""
    threads: int = 0
    """Threads of torch; 0 for one on each core."""
    score_minutes: float = 20.0
    """Minutes between scores of the unfinished model."""
    rate: float = 0.02
    """Learning rate of the matrices; the embedding and the norms have a lower one."""
    decay_from: float = 0.25
    """Share of the run, 0 to 1, after which the learning rate falls linearly to 0."""
    save_seconds: float = 300.0
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
    parts: int = 0
    """Parts of the corpus that were begun."""

    def share(self, settings: Settings) -> float:
        """Return the finished share of the run, 0 to 1: of its tokens or of its time, whichever is larger."""
        timed = self.seconds / (60 * settings.minutes) if settings.minutes else 0.0
        return max(timed, self.tokens / settings.tokens)


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


def loss_sum(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return the sum of the losses of the target tokens, in nats; documents of a row do not attend to each other."""
    width = batch.ids.size(1)
    before = torch.ones(width, width, dtype=torch.bool, device=batch.ids.device).tril()
    visible = (batch.document[:, :, None] == batch.document[:, None, :]) & before
    hidden = model.model(input_ids=batch.ids, attention_mask=visible[:, None], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][batch.targets])
    return functional.cross_entropy(logits.float(), batch.ids[:, 1:][batch.targets], reduction="sum")


def prefers_bfloat16(device: torch.device) -> bool:
    """Return whether matrix products of a batch are clearly faster in bfloat16 here: always on a GPU."""
    if device.type == "cuda":
        return True
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.ones(256, 256, dtype=dtype), torch.ones(256, 576, dtype=dtype)
        left @ right
        start = time.perf_counter()
        for _ in range(5):
            left @ right
        seconds[dtype] = time.perf_counter() - start
    return seconds[torch.bfloat16] < 0.7 * seconds[torch.float32]


class Run:
    """A training run: weights, optimizers, progress."""

    def __init__(self, settings: Settings) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cuda":
            settings = replace(settings, batch=GPU_TIMES * settings.batch, tokens=GPU_TIMES * settings.tokens)
        self.settings = settings
        self.progress = Progress()
        settings.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer()
        self.bfloat16 = prefers_bfloat16(self.device)
        self.model = new_model(settings, self.tokenizer.get_vocab_size())
        torch.nn.Module.to(self.model, self.device)
        matrices = [parameter for parameter in self.model.model.layers.parameters() if parameter.ndim == 2]
        matrix_ids = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in matrix_ids]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
        self.checkpoint = settings.work / "checkpoint.pt"
        if self.checkpoint.exists():
            self._load()
        processes = (os.cpu_count() or 2) - 1 if self.device.type == "cuda" else 0
        tokenizer = settings.work / "tokenizer.json"
        self.source = Source(tokenizer, settings.seed, first=self.progress.parts, processes=processes)

    def train(self) -> bool:
        """Train until the tokens or the time are used up, with checkpoints; return whether the run is complete."""
        log.info("%s, bfloat16 %s, batches of %d tokens", self.device, self.bfloat16, self.settings.batch)
        start = saved = scored = time.monotonic()
        while self.progress.share(self.settings) < 1:
            self._train_until(saved + self.settings.save_seconds)
            self._save()
            saved = time.monotonic()
            if saved - scored > 60 * self.settings.score_minutes:
                self._score()
                scored = time.monotonic()
            if self.settings.pause and saved - start > 60 * self.settings.pause:
                break
        return self.progress.share(self.settings) >= 1

    def _train_until(self, deadline: float) -> None:
        """Train up to this time of the monotonic clock, to the end of the run, or until its rows become wider."""
        wide = self.progress.share(self.settings) >= WIDE_FROM
        width = self.settings.width * (2 if wide else 1)
        for step in batches(self.source, self.settings.batch, width, 2 * width):
            self._step([batch.to(self.device) for batch in step])
            self.progress.parts = self.source.number
            share = self.progress.share(self.settings)
            if time.monotonic() > deadline or share >= 1 or (share >= WIDE_FROM) != wide:
                return

    def _step(self, step: Sequence[Batch]) -> None:
        start = time.monotonic()
        tokens, targets = sum(batch.ids.numel() for batch in step), sum(int(batch.targets.sum()) for batch in step)
        rate = self.settings.rate * self._rate_share(tokens)
        for batch in step:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
                loss: Any = loss_sum(self.model, batch) / targets
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step(rate)
        self.adam.param_groups[0]["lr"] = ADAM_RATE * rate
        self.adam.step()
        self.model.zero_grad()
        self.progress.tokens += tokens
        self.progress.seconds += time.monotonic() - start

    def _rate_share(self, step_tokens: int) -> float:
        """Return the current share of the learning rate: a short rise, a long plateau, a fall to 0."""
        rise = (self.progress.tokens / step_tokens + 1) / WARM_STEPS
        fall = (1 - self.progress.share(self.settings)) / (1 - self.settings.decay_from)
        return max(0.0, min(1.0, rise, fall))

    def validation_loss(self, tokens: int = VALIDATION_TOKENS) -> float:
        """Return the mean loss, in nats, on batches of so many tokens in all, which are not trained on."""
        count = max(1, tokens // self.settings.batch)
        source, width = Source(self.settings.work / "tokenizer.json", VALIDATION_SEED), 2 * self.settings.width
        steps = islice(batches(source, self.settings.batch, width, 2 * width), count)
        held_out = [batch.to(self.device) for step in steps for batch in step]
        with torch.no_grad():
            losses = sum(float(loss_sum(self.model, batch)) for batch in held_out)
        return losses / sum(int(batch.targets.sum()) for batch in held_out)

    def _score(self) -> None:
        self.export(folder := self.settings.work / "unfinished")
        by_kind = shares(grade(first_prompts(), Answers(folder)))
        log.info("first prompts: %s", ", ".join(f"{kind} {100 * share:.0f}" for kind, share in by_kind.items()))

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
            "parts": self.progress.parts,
        }
        unfinished = self.checkpoint.with_suffix(".new")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)
        loss = self.validation_loss()
        minutes = self.progress.seconds / 60
        log.info("%.2fM tokens, %.1f min, validation loss %.4f", self.progress.tokens / 1e6, minutes, loss)

    def _load(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for average, saved in zip(self.muon.averages, state["muon"], strict=True):
            average.copy_(saved)
        self.adam.load_state_dict(state["adam"])
        self.progress = Progress(state["tokens"], state["seconds"], state["parts"])
        log.info("resuming from %.2fM tokens", self.progress.tokens / 1e6)

    def export(self, out: Path) -> None:
        """Write the model to a folder: weights stored as float16 to be small, computed in float32."""
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
    parser = argparse.ArgumentParser(prog="python -m tests.tiny.recipe.train", description="Make the embedded model.")
    for field in fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        kind = Path if isinstance(field.default, Path) else type(field.default)
        parser.add_argument(option, type=kind, default=field.default)
    return Settings(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or go on with training; when that is complete, write the model and log its scores."""
    settings = settings_from(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(settings.threads or os.cpu_count() or 1)
    run = Run(settings)
    if run.train():
        run.export(settings.out)
        scores(settings.out)


if __name__ == "__main__":
    main()
