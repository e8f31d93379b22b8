"""Fingerprints of models: equal where the streams are, others where anything that decides them is another."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmtool.inference.backends.random import load_random
from lmtool.inference.engine import fingerprint as own
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.fingerprint import contents_digest
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.composition import Loader
from tests.inference.engine.conftest import no_compiler

STORIES = Path(__file__).parents[2] / "data/stories260K"
ONE = EngineConfig(threads=1, device="cpu", dtype="float32")


def fingerprint_of(folder, config=ONE):
    engine = load_engine(str(folder), config)
    engine.close()
    return engine.info_now.fingerprint


async def with_text(folder):
    """That of the model with its tokenizer and chat template."""
    model = Loader(ONE).load(str(folder), lambda _: None)
    model.close()
    return (await model.info()).fingerprint


def copy(folder, where, name):
    return Path(shutil.copytree(folder, where / name))


def test_same_model(checkpoint, tmp_path):
    """A model has the same one at each load, under any name, cut into any files."""
    folder = checkpoint("llama")
    other = copy(folder, tmp_path, "other")
    weights = load_file(other / "model.safetensors")
    parts = [dict(list(weights.items())[:5]), dict(list(weights.items())[5:])]
    for number, part in enumerate(parts):
        save_file(part, other / f"part{number}.safetensors", {"format": "pt"})
    files = {name: f"part{number}.safetensors" for number, part in enumerate(parts) for name in part}
    (other / "model.safetensors").unlink()
    (other / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert fingerprint_of(folder) == fingerprint_of(other)
    assert len(fingerprint_of(folder)) == 64


def test_any_weight_counts(checkpoint, tmp_path):
    """The lowest bit of one weight is another model: one that no prompt of a few tokens would show, too."""
    folder, found = checkpoint("llama"), set()
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.2.mlp.down_proj.weight"):
        changed = copy(folder, tmp_path, name)
        weights = load_file(changed / "model.safetensors")
        weights[name].view(torch.int32)[-1, -1] ^= 1
        save_file(weights, changed / "model.safetensors", {"format": "pt"})
        found.add(fingerprint_of(changed))
    assert len(found | {fingerprint_of(folder)}) == 4


def test_settings_count(checkpoint, tmp_path):
    """So do the dtype, quantization, what computes it, the context, and numbers of config.json."""
    folder = checkpoint("llama")
    changed = copy(folder, tmp_path, "eps")
    text = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(text | {"rms_norm_eps": text["rms_norm_eps"] * 2}))
    found = [fingerprint_of(folder), fingerprint_of(changed)]
    others = ({"dtype": "bfloat16"}, {"max_context": 99}, {"kernels": "none"}, {"kernels": "none", "threads": 2})
    found += [fingerprint_of(folder, replace(ONE, **more)) for more in others]
    torch.set_num_threads(1)
    assert len(set(found)) == len(found)


@pytest.mark.usefixtures("kernels")
def test_compiled_kernels(checkpoint, monkeypatch):
    """Threads mean nothing to the C kernels, their machine code and the kind of processor do."""
    folder = checkpoint("llama")
    one = fingerprint_of(folder)
    assert fingerprint_of(folder, replace(ONE, threads=2)) == one
    torch.set_num_threads(1)
    assert fingerprint_of(folder, replace(ONE, quantize="int8")) != one
    monkeypatch.setattr(own, "_device", lambda _: "another")
    assert fingerprint_of(folder) != one
    monkeypatch.undo()
    monkeypatch.setattr(own.kernels(), "digest", "0")
    assert fingerprint_of(folder) != one


async def test_text_counts(tmp_path):
    """A server that speaks text has the tokenizer and the chat template in it; one of ids alone has neither."""
    template = {"chat_template": "{{ messages[0].content }}"}
    (plain, templated) = (copy(STORIES, tmp_path, name) for name in ("plain", "templated"))
    settings = json.loads((templated / "tokenizer_config.json").read_text())
    (templated / "tokenizer_config.json").write_text(json.dumps(settings | template))
    tokenizer = copy(STORIES, tmp_path, "tokenizer")
    text = (tokenizer / "tokenizer.json").read_text()
    (tokenizer / "tokenizer.json").write_text(text.replace("▁zebra", "▁zebro") + " ")
    found = [await with_text(folder) for folder in (plain, templated, tokenizer)]
    assert len({*found, fingerprint_of(plain)}) == 4
    assert await with_text(STORIES) == found[0]


def test_included_model():
    """The model that comes along, and one without weights, have theirs."""
    assert fingerprint_of(MODEL_DIR) == fingerprint_of(MODEL_DIR)
    with no_compiler():
        plain = fingerprint_of(MODEL_DIR)
    assert plain != fingerprint_of(MODEL_DIR, replace(ONE, dtype="bfloat16"))
    engines = [load_random("m", ONE, {"seed": seed, "step_ms": ms}, lambda _: None) for seed, ms in ("10", "11", "20")]
    for engine in engines:
        engine.close()
    first, slower, other = (engine.info_now.fingerprint for engine in engines)
    assert first == slower != other


def test_code_of_its_own(monkeypatch, checkpoint):
    """A model that brings code has none: nothing here knows what that computes."""
    from lmtool.inference.engine import transformers_loader

    monkeypatch.setattr(transformers_loader, "_known_code", lambda _: False)
    assert fingerprint_of(checkpoint("llama")) is None


def test_pieces(monkeypatch):
    """Large tensors are hashed piece by piece; an empty one, a number and one that is not contiguous as well."""
    tensors = [("a", torch.arange(1000.0)), ("b", torch.empty(0)), ("c", torch.tensor(5.0)), ("d", torch.ones(3, 4).T)]
    whole = contents_digest({}, tensors)
    assert contents_digest({}, reversed(tensors)) == whole
    monkeypatch.setattr(own, "_PIECE_BYTES", 64)
    cut = contents_digest({}, tensors)
    tensors[0][1][500] = -1
    assert contents_digest({}, tensors) != cut
