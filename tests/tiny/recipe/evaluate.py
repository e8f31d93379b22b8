"""Scores of the embedded model, or of another of its kind.

python -m tests.tiny.recipe.evaluate [FOLDER]
"""

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from lmtool.inference.tiny.path import MODEL_DIR
from tests.tiny.recipe.categories import categories, judge
from tests.tiny.recipe.grading import (
    Conversation,
    Graded,
    Reply,
    first_prompts,
    grade,
    shares,
    two_hundred_records,
    two_hundred_stories,
)

log = logging.getLogger("tests.tiny.recipe.evaluate")

BATCH = 64
"""Texts that are continued at once."""


@torch.no_grad()
def continuations(model: LlamaForCausalLM, tokenizer: Tokenizer, texts: Sequence[str], limit: int = 240) -> list[Reply]:
    """Return the greedy continuation of each text, at most `limit` tokens."""
    writer: Any = model
    encoded_texts = [tokenizer.encode(text).ids for text in texts]
    order = sorted(range(len(texts)), key=lambda at: len(encoded_texts[at]))
    by_index: dict[int, Reply] = {}
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        width = max(len(encoded_texts[at]) for at in part)
        rows = [[0] * (width - len(encoded_texts[at])) + encoded_texts[at] for at in part]
        mask = [[0] * (width - len(encoded_texts[at])) + [1] * len(encoded_texts[at]) for at in part]
        output = writer.generate(
            torch.tensor(rows), attention_mask=torch.tensor(mask), max_new_tokens=limit, do_sample=False
        )
        for at, ids in zip(part, output[:, width:].tolist(), strict=True):
            by_index[at] = Reply(tokenizer.decode(ids, skip_special_tokens=True), ended=bool({0, 2} & set(ids)))
    return [by_index[at] for at in range(len(texts))]


class Answers:
    """A model's answers to conversations, as its own chat template renders them."""

    def __init__(self, folder: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._template: Any = AutoTokenizer.from_pretrained(folder)

    def __call__(self, conversations: Sequence[Conversation]) -> list[Reply]:
        """Return the greedy answer to each conversation."""
        found: dict[int, Reply] = {}
        for limit in {one.limit for one in conversations}:
            places = [at for at, one in enumerate(conversations) if one.limit == limit]
            texts = [self._text(conversations[at]) for at in places]
            replies = continuations(self.model, self.tokenizer, texts, limit)
            found.update(zip(places, replies, strict=True))
        return [found[at] for at in range(len(conversations))]

    def texts(self, texts: Sequence[str]) -> list[str]:
        """Return the greedy continuation of each text."""
        return [reply.text for reply in continuations(self.model, self.tokenizer, texts)]

    def _text(self, one: Conversation) -> str:
        text: str = self._template.apply_chat_template(
            list(one.messages), tools=list(one.tools) or None, tokenize=False, add_generation_prompt=True
        )
        return text


def log_graded(graded: Sequence[Graded], *, failures: int = 20) -> dict[str, float]:
    """Log and return the share of good answers by kind, 0 to 1, and log some of the others."""
    by_kind = shares(graded)
    for kind, share in by_kind.items():
        log.info("%6.1f %%  %s", 100 * share, kind)
    for one in [one for one in graded if one.fault][:failures]:
        log.info("    %s: %r -> %r", one.fault, one.prompt.asks, one.answers[-1].text)
    return by_kind


def log_categories(answers: Answers) -> None:
    """Log the score in each category, with some failures."""
    for result in judge(categories(), answers.texts):
        verdict = "" if result.passed else f"  misses {result.category.required:.0%}"
        log.info("%6.1f %%  %s of %d%s", 100 * result.share, result.category.name, len(result.category.cases), verdict)
        for text, reply in result.failures[:8]:
            log.info("            %r -> %r", text, reply)


def scores(folder: Path) -> Mapping[str, float]:
    """Log the folder's scores; return those of the first prompts by kind, of 200 stories and of 200 records, 0 to 1."""
    answers = Answers(folder)
    by_kind = log_graded(grade(first_prompts(), answers), failures=120)
    for prompts in (two_hundred_stories(), two_hundred_records()):
        by_kind |= {prompts[0].kind: log_graded(grade(prompts, answers))["all"]}
    log_categories(answers)
    return by_kind


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the scores of a model's folder, in JSON at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.tiny.recipe.evaluate", description=scores.__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=MODEL_DIR)
    folder = parser.parse_args(arguments).folder
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log.info("%s", json.dumps({kind: round(share, 3) for kind, share in scores(folder).items()}))


if __name__ == "__main__":
    main()
