"""Random rows of logits with random parameters, as many kinds mixed as a batch may have."""

from __future__ import annotations

import torch

from lmtool.core.types import SamplingParams
from lmtool.inference.engine.sampling_row import Bias, Row

CHOICES = {
    "temperature": [0.0, 0.3, 1.0, 1.7, 50.0],
    "top_k": [0, 0, 1, 5, 40, 299],
    "top_p": [1.0, 1.0, 0.9, 0.5, 0.05, 0.999, 0.0],
    "min_p": [0.0, 0.0, 0.05, 0.5],
    "repetition_penalty": [1.0, 1.3],
    "presence_penalty": [0.0, 0.5],
    "frequency_penalty": [0.0, 0.2],
    "logprobs_mode": ["raw", "biased", "processed"],
}


def random_rows(chosen, count, vocabulary, scale):
    """Logits [count, vocabulary] and as many rows. chosen: a `random.Random`. scale: of the logits."""
    generator = torch.Generator().manual_seed(chosen.randrange(2**31))
    logits = torch.randn(count, vocabulary, generator=generator) * scale
    logits[chosen.randrange(count), chosen.sample(range(vocabulary), vocabulary // 3)] = -torch.inf
    return logits, [_row(chosen, vocabulary, generator) for _ in range(count)]


def _row(chosen, vocabulary, generator):
    params = SamplingParams(**{name: chosen.choice(values) for name, values in CHOICES.items()})
    words = torch.randint(-(2**31), 2**31, (-(-vocabulary // 32),), generator=generator).int()
    words[-1] |= 1
    return Row(
        params,
        chosen.choice([None] * 7 + [vocabulary - 1]),
        Bias.of(chosen.choice([{}, {3: 5.0, vocabulary - 1: -4.0}])),
        chosen.choice([None, 0, 1, 1, 4, 20]),
        chosen.randrange(99),
        chosen.randrange(99),
        barred=chosen.choice([(), (), (3, 5)]),
        known_ids=(1, 2, 4),
        counts={2: 2, 4: 1},
        allowed=chosen.choice([None, None, words]),
        logprob_ids=chosen.choice([(), (), (4, 9)]),
    )
