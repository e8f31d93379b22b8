"""A file that is cut off, or that lies, costs an error and no memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.errors import LmtoolError, ModelLoadError
from lmtool.inference.engine.gguf.header import read_header
from lmtool.inference.engine.gguf.loader import open_gguf
from tests.inference.engine.gguf.conftest import SHAPE, random_model
from tests.inference.engine.gguf.writing import write


def quiet(_progress: object) -> None:
    """Nobody asks how the load proceeds."""


def opened(path: Path, content: bytes) -> object:
    """What is made of a file of these bytes."""
    path.write_bytes(content)
    return open_gguf(str(path), quiet)


def test_what_it_says(small: Path) -> None:
    """Metadata by key, tensors with their rows first, as the package gguf reads them."""
    file, theirs = read_header(small), gguf.GGUFReader(small)
    assert file.architecture == "llama"
    assert file.metadata["llama.embedding_length"] == 32
    expected = {t.name: (tuple(t.shape.tolist()[::-1]), int(t.tensor_type), t.data_offset) for t in theirs.tensors}
    assert {name: (one.shape, one.kind, one.start) for name, one in file.tensors.items()} == expected


def test_all_kinds_of_values(tmp_path: Path) -> None:
    """Numbers of every width, booleans, texts, and arrays of them."""
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    values = {"uint8": 3, "int8": -3, "uint16": 300, "int16": -300, "uint32": 1 << 31, "int32": -5, "uint64": 1 << 40}
    values |= {"int64": -(1 << 40), "float32": 0.5, "float64": 0.1, "bool": True, "string": "é"}
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.texts", ["a", "ü", ""])
    writer.add_array("x.numbers", [1.5, -2.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_header(path).metadata
    assert {kind: metadata[f"x.{kind}"] for kind in values} == values
    assert metadata["x.texts"] == ["a", "ü", ""]
    assert metadata["x.numbers"] == [1.5, -2.0]


def test_a_cut_file(small: Path, tmp_path: Path) -> None:
    """At whatever byte: said with the file's name."""
    whole, path = small.read_bytes(), tmp_path / "cut.gguf"
    end = max(tensor.data_offset + tensor.n_bytes for tensor in gguf.GGUFReader(small).tensors)
    for size in [*range(0, 1400, 7), *range(1400, end, 400), end - 1]:
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            opened(path, whole[:size])


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"PK\3\4" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 33), "8589934592 keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 4, 1 << 61), "items of an array"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 6, 1 << 22), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1), "array .* unknown type 9"),
        (b"GGUF" + struct.pack("<IQQQ1sIQ1s", 3, 0, 1, 1, b"a", 8, 1, b"\xff"), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 9), "9 dimensions"),
    ],
)
def test_lies(tmp_path: Path, start: bytes, said: str) -> None:
    """Numbers that the file's size contradicts are not followed: hardly any memory is asked for."""
    path = tmp_path / "lies.gguf"
    path.write_bytes(start)
    tracemalloc.start()
    with pytest.raises(ModelLoadError, match=said) as refused:
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert refused.value.hints


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """As any other file; a folder is none."""
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelLoadError, match="cannot read"):
            read_header(path)


@given(st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage(small: Path, tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    """Whatever is in the header: a model, or one of our errors."""
    content = bytearray(small.read_bytes())
    for place, value in damage:
        content[place] = value
    try:
        opened(tmp_path / "damaged.gguf", bytes(content))
    except LmtoolError as error:
        assert error.hints  # noqa: PT017  # there may be none


BROKEN = [
    ({"general.alignment": 3}, None, "general.alignment"),
    ({"llama.block_count": 0}, None, "block_count"),
    ({"llama.block_count": 2}, None, "lacks tensors: blk.1."),
    ({"llama.embedding_length": 64}, None, "token_embd"),
    ({"llama.feed_forward_length": 64}, None, "its model.layers.0.mlp"),
    ({"llama.attention.layer_norm_rms_epsilon": None}, None, "epsilon is None"),
    ({"llama.attention.head_count": "8"}, None, "expected a whole number"),
    ({"llama.attention.head_count_kv": 3}, None, "8 heads"),
    ({"llama.rope.freq_base": -1.0}, None, "freq_base"),
    ({}, {"blk.0.attn_q.weight": None}, r"lacks tensors: blk\.0\.attn_q\.weight"),
    ({}, {"output_norm.weight": np.zeros(31, np.float32)}, "norm.weight is"),
    ({}, {"rope_freqs.weight": np.zeros(2, np.float32)}, "not above 0"),
]


@pytest.mark.parametrize(("metadata", "tensors", "said"), BROKEN)
def test_what_does_not_belong_together(tmp_path: Path, metadata: dict, tensors: dict | None, said: str) -> None:
    """Sizes that contradict tensors, tensors that are missing, numbers that make no sense: damaged, fetch it again."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 7}
    path = tmp_path / "x.gguf"
    write(path, random_model(transformers.LlamaConfig(**{**SHAPE, **sizes})), "F32", metadata, tensors)
    with pytest.raises(ModelLoadError, match=said) as refused:
        open_gguf(str(path), quiet)
    assert "download the file again" in refused.value.hints[0]


REFUSED = [
    ({"general.architecture": "gemma2"}, None, "architecture is 'gemma2'"),
    ({"llama.expert_count": 8}, None, "mixture of experts"),
    ({"llama.rope.scaling.type": "yarn"}, None, "'yarn'"),
    ({"llama.rope.scaling.attn_factor": 0.8}, None, "attn_factor"),
    ({"llama.rope.dimension_count": 2}, None, "rope.dimension_count is 2"),
    ({"split.count": 3}, None, "one of several parts"),
    ({}, {"blk.0.attn_sinks.weight": np.zeros(8, np.float32)}, "attn_sinks"),
]


@pytest.mark.parametrize(("metadata", "tensors", "said"), REFUSED)
def test_what_only_llamacpp_runs(tmp_path: Path, metadata: dict, tensors: dict | None, said: str) -> None:
    """The reason, and the backend that may run it."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 7}
    path = tmp_path / "x.gguf"
    write(path, random_model(transformers.LlamaConfig(**{**SHAPE, **sizes})), "F32", metadata, tensors)
    with pytest.raises(ModelLoadError, match=said) as refused:
        open_gguf(str(path), quiet)
    assert "--backend llamacpp" in refused.value.hints[0]


def test_a_type_that_is_not_converted(small: Path, tmp_path: Path) -> None:
    """Known to gguf or not: refused by name, with the backend that may know it."""
    content = small.read_bytes()
    file = read_header(small)
    raw = content.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    assert content[raw] == file.tensors["blk.0.ffn_up.weight"].kind == gguf.GGMLQuantizationType.Q8_0
    for kind, said in ((19, "IQ1_S"), (200, "type 200, which gguf does not know")):
        with pytest.raises(ModelLoadError, match=said) as refused:
            opened(tmp_path / "x.gguf", content[:raw] + bytes([kind]) + content[raw + 1 :])
        assert "--backend llamacpp" in refused.value.hints[0]
