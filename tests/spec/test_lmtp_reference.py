"""A trained model served over LMTP gives what transformers computed for it."""

import json

import pytest

from tests.spec.conftest import STORIES

REFERENCE = json.loads((STORIES / "reference.json").read_text())["outputs"]
NEAR_TIE = 0.01
"""Nats between the two best tokens below which another order of additions may choose the other."""
TOLERANCE = 1e-4


@pytest.mark.parametrize("case", REFERENCE, ids=[case["prompt"][:12] for case in REFERENCE])
async def test_reference(real, case):
    """GEN-1, GEN-4, LOG-1, TXT-1, TXT-3: ids up to the first near tie, logprobs, alternatives, text."""
    fields = {"prompt": case["prompt"], "max_tokens": 200, "top_logprobs": 5, "stream_id": 1}
    await real.send(f"GENERATE {json.dumps(fields)}")
    entries = await real.stream(1)
    same = 0
    for entry, step in zip(entries, case["steps"], strict=False):
        best, second = (logprob for _, logprob in step["top5"][:2])
        if entry["token"] != step["id"]:
            assert best - second < NEAR_TIE
            break
        assert entry["logprob"] == pytest.approx(step["logprob"], abs=TOLERANCE)
        for token, logprob in step["top5"]:
            assert entry["top_logprobs"].get(str(token), logprob) == pytest.approx(logprob, abs=TOLERANCE)
        same += 1
    assert same >= 100
    if same == len(case["steps"]):
        text = "".join(entry["text"] for entry in entries)
        assert case["prompt_text"] + text == case["text"]
        assert entries[-1]["finish_reason"] == {"eos": "stop", "length": "length"}[case["finish"]]


@pytest.mark.parametrize("case", REFERENCE, ids=[case["prompt"][:12] for case in REFERENCE])
async def test_reference_scores(real, case):
    """SCO-1, SCO-2, LOG-3: the scores of the prompt, and of the whole text."""
    ids = case["prompt_ids"] + case["new_ids"]
    await real.send(f"SCORE {json.dumps({'prompt': ids[:1], 'scored': ids[1:], 'stream_id': 1})}")
    expected = case["prompt_logprobs"] + [step["logprob"] for step in case["steps"]]
    found = [entry["logprob"] for entry in await real.stream(1)]
    assert found == pytest.approx(expected, abs=TOLERANCE)
