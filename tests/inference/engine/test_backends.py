"""Loading: a real model gives its reference results; what cannot be served is refused in clear words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import transformers

from lmtool.core.errors import ModelLoadError, OutOfMemoryError, ResourceError
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine

STORIES = Path(__file__).parents[2] / "data/stories260K"
REFERENCE = json.loads((STORIES / "reference.json").read_text())["outputs"]
EXTRA = json.loads((STORIES / "reference_extra.json").read_text())
ONE = EngineConfig(threads=1)


@pytest.fixture(scope="module")
def stories():
    """An engine over the real 260K-parameter model."""
    engine = load_engine(str(STORIES), ONE)
    yield engine
    engine.close()


class TestRealModel:
    """The real model reproduces what transformers gives."""

    async def test_greedy(self, stories, run):
        """All prompts at once: ids up to the first near tie, logprobs and top 5 within 1e-4, and the same endings."""
        sampling = SamplingParams(max_tokens=200, top_logprobs=5)
        requests = [GenerateRequest(n, tuple(case["prompt_ids"]), sampling) for n, case in enumerate(REFERENCE)]
        outputs = await run(stories, *requests)
        for number, case in enumerate(REFERENCE):
            steps = case["steps"]
            gaps = [step["top5"][0][1] - step["top5"][1][1] for step in steps]
            near = next((index for index, gap in enumerate(gaps) if gap < 0.01), len(steps))
            ours = outputs[number][:near]
            assert [output.token for output in ours] == case["new_ids"][:near]
            assert [o.logprob for o in ours] == pytest.approx([step["logprob"] for step in steps[:near]], abs=1e-4)
            for output, step in zip(ours, steps, strict=False):
                expected = [value for _, value in step["top5"]]
                assert [value for _, value in output.top_logprobs] == pytest.approx(expected, abs=1e-4)
            if near == len(steps):
                assert outputs[number][-1].finish_reason == {"eos": "stop", "length": "length"}[case["finish"]]

    async def test_prompt_logprobs(self, stories, run):
        """SCORE gives the logprobs of the prompt's own ids."""
        cases = [case for case in REFERENCE if len(case["prompt_ids"]) > 1]
        requests = [ScoreRequest(n, (c["prompt_ids"][0],), tuple(c["prompt_ids"][1:])) for n, c in enumerate(cases)]
        outputs = await run(stories, *requests)
        for number, case in enumerate(cases):
            assert [o.logprob for o in outputs[number]] == pytest.approx(case["prompt_logprobs"], abs=1e-4)

    async def test_scores(self, stories, run):
        """SCORE of several continuations of one prompt."""
        cases = [(group["prompt_ids"], one) for group in EXTRA["choice_scores"] for one in group["choices"]]
        requests = [ScoreRequest(n, tuple(ids), tuple(one["ids"])) for n, (ids, one) in enumerate(cases)]
        outputs = await run(stories, *requests)
        for number, (_, one) in enumerate(cases):
            assert [o.logprob for o in outputs[number]] == pytest.approx(one["logprobs"], abs=1e-4)


class TestProgress:
    """How far a load is."""

    def test_bytes(self):
        """`loading` with growing bytes up to the files' size, then `ready`."""
        seen = []
        load_engine(str(STORIES), ONE, seen.append).close()
        size = (STORIES / "model.safetensors").stat().st_size
        done = [progress.done_bytes for progress in seen]
        assert {progress.phase for progress in seen[:-1]} == {"loading"}
        assert seen[-1].phase == "ready"
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, size)
        assert {progress.total_bytes for progress in seen} == {size}

    def test_failed(self, tmp_path):
        """The last word on a load that fails is `failed`, with the reason."""
        seen = []
        with pytest.raises(ModelLoadError):
            load_engine(str(tmp_path / "nothing"), ONE, seen.append)
        assert seen[-1].phase == "failed"
        assert "nothing" in seen[-1].message


class TestRefusals:
    """What, with the value; why; what to do next. Nothing of transformers' own on the terminal."""

    def refusal(self, model, config=ONE, kind=ModelLoadError):
        """The error that loading ends with."""
        with pytest.raises(kind) as caught:
            load_engine(str(model), config)
        assert type(caught.value) is kind
        assert caught.value.hints
        return caught.value.message

    def test_no_such_folder(self, tmp_path, monkeypatch):
        """Tells where it looked."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        message = self.refusal("no-such-model")
        assert "no-such-model was not found" in message
        assert str(tmp_path) in message
        assert "hub" in message

    def test_name_that_is_too_long(self, monkeypatch):
        """Longer than a path may be: not found either."""
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert "was not found" in self.refusal("x" * 400)

    def test_path_that_is_missing(self, tmp_path):
        """A path is not looked for on the hub."""
        assert "is not a model folder" in self.refusal(tmp_path / "nothing")

    def test_empty_folder(self, tmp_path):
        """Names what it expected to find there."""
        assert str(tmp_path) in self.refusal(tmp_path)

    def test_damaged_weights(self, tmp_path):
        """A file that is cut off."""
        (tmp_path / "config.json").write_bytes((STORIES / "config.json").read_bytes())
        (tmp_path / "model.safetensors").write_bytes((STORIES / "model.safetensors").read_bytes()[:5000])
        assert "is truncated: it has 5000 bytes" in self.refusal(tmp_path)

    def test_missing_weights(self, tmp_path):
        """A checkpoint without some of the model's weights is not filled up with random ones."""
        from safetensors.torch import load_file, save_file

        (tmp_path / "config.json").write_bytes((STORIES / "config.json").read_bytes())
        weights = load_file(STORIES / "model.safetensors")
        del weights["model.layers.0.mlp.up_proj.weight"]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert "model.layers.0.mlp.up_proj.weight" in self.refusal(tmp_path)

    def test_config_that_is_not_json(self, tmp_path):
        """A broken config.json."""
        (tmp_path / "config.json").write_text("{")
        assert "config.json is not JSON" in self.refusal(tmp_path)

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"vocab_size": 600}, "model.embed_tokens.weight is [512, 64], expected [600, 64]"),
            ({"num_hidden_layers": 9}, "lacks: model.layers.5.input_layernorm.weight"),
            ({"num_attention_heads": 7}, "cannot be loaded"),
            ({"model_type": "zorg"}, "of a kind that transformers"),
        ],
    )
    def test_config_of_another_model(self, tmp_path, changes, problem):
        """What does not belong to the weights is told by name."""
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).write_bytes((STORIES / name).read_bytes())
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        assert problem in self.refusal(tmp_path)

    def test_weights_that_are_not_numbers(self, tmp_path):
        """Nothing is served whose logits are NaN."""
        from safetensors.torch import load_file, save_file

        (tmp_path / "config.json").write_bytes((STORIES / "config.json").read_bytes())
        weights = load_file(STORIES / "model.safetensors")
        weights["model.norm.weight"] *= math.nan
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert "give logits that are not numbers" in self.refusal(tmp_path)

    def test_not_causal(self, tmp_path):
        """A model that does not continue text."""
        config = transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
        assert "not a causal language model" in self.refusal(tmp_path)

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            (
                transformers.GPTJConfig(vocab_size=50, n_embd=16, n_layer=1, n_head=2, rotary_dim=4),
                "computes attention by itself",
            ),
            (
                transformers.GptOssConfig(
                    vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=8, num_local_experts=2, num_experts_per_tok=1, rope_parameters=None,
                ),
                "its attention has sinks",
            ),
            (
                transformers.Llama4TextConfig(
                    vocab_size=50, hidden_size=16, intermediate_size=16, intermediate_size_mlp=16, num_hidden_layers=2,
                    num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_local_experts=2,
                    attention_chunk_size=8,
                ),
                "neither causal nor a sliding window",
            ),
            (
                transformers.RecurrentGemmaConfig(
                    vocab_size=50, hidden_size=16, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
                    lru_width=16, attention_window_size=8,
                ),
                "some of its layers keep a state of the text",
            ),
        ],
        ids=["own attention", "sinks", "chunked attention", "recurrent"],
    )  # fmt: skip
    def test_unsupported(self, tmp_path, config, reason):
        """An architecture that the engine would compute wrongly is refused by name."""
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.save_pretrained(tmp_path)
        message = self.refusal(tmp_path)
        assert reason in message
        assert type(model).__name__ in message

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_no_gpu(self):
        """CUDA asked for and none there."""
        assert "'cuda' is not there" in self.refusal(STORIES, EngineConfig(device="cuda"), ResourceError)

    def test_cache_too_small(self):
        """Says how many bytes are needed."""
        config = EngineConfig(kv_cache_bytes=1000)
        assert "a key-value cache of 1000 bytes is too small" in self.refusal(STORIES, config, ResourceError)

    def test_cache_too_large(self):
        """More than any machine has."""
        config = EngineConfig(kv_cache_bytes=10**14)
        assert "no memory for the key-value cache" in self.refusal(STORIES, config, OutOfMemoryError)


@pytest.fixture(scope="module")
def length(tmp_path_factory):
    """The context length of a small Llama with these settings."""

    def load(config=ONE, **settings):
        folder = tmp_path_factory.mktemp("context")
        shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        model_config = transformers.LlamaConfig(vocab_size=50, max_position_embeddings=512, **shape, **settings)
        transformers.AutoModelForCausalLM.from_config(model_config).save_pretrained(folder)
        engine = load_engine(str(folder), config)
        engine.close()
        return engine.info_now.context_length

    return load


class TestContext:
    """How many tokens a stream may have."""

    def test_the_models_own(self, length):
        """What the model was made for."""
        assert length() == 512

    def test_max_context(self, length):
        """`max_context` lowers it."""
        assert length(EngineConfig(max_context=100)) == 100
        assert length(EngineConfig(max_context=9000)) == 512

    def test_small_cache(self, length):
        """A stream cannot be longer than the whole cache."""
        block = 16 * 2 * 16 * 4
        assert length(EngineConfig(kv_cache_bytes=10 * block)) == 161

    def test_frequencies_that_depend_on_the_batch(self, length):
        """Where a long stream would change its neighbours' rotary frequencies, streams may not be so long."""
        rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
        assert length(rope_parameters=rope) == 128


class TestDtype:
    """`--dtype`."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    async def test_as_asked(self, dtype, run):
        """The model runs in the dtype asked for, and tells so."""
        engine = load_engine(str(STORIES), EngineConfig(dtype=dtype, threads=1))
        outputs = await run(engine, GenerateRequest(1, (1, 403, 407), SamplingParams(max_tokens=2)))
        engine.close()
        assert [output.token for output in outputs[1]] == [261, 378]
        assert (await engine.info()).dtype == dtype

    def test_auto(self):
        """A small float32 checkpoint stays float32 on CPU."""
        engine = load_engine(str(STORIES), EngineConfig(device="cpu"))
        engine.close()
        assert engine.info_now.dtype == "float32"
