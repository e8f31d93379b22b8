"""Tokenizers from metadata give the ids and texts of the tokenizer.json that they were made of."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer

from lmtool.core.errors import FileError, ModelLoadError
from lmtool.inference.engine.gguf.tokenizer import read_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from tests.conftest import STORIES
from tests.inference.engine.gguf.conftest import vocabulary
from tests.inference.engine.gguf.writing import _add

TEXTS = [
    "Once upon a time, there was a little girl. She didn't have 12345 apples!",
    "  two  blanks\n\n\tand a tab",
    "Ünïcödé 日本語 🙂 naïve",
    "",
    "<s>x</s> <|im_start|>user\nHi<|im_end|>\n",
]
FOLDERS = {"byte-level": MODEL_DIR, "sentencepiece": STORIES}


@pytest.fixture
def written(tmp_path: Path):
    """A file with this metadata and no tensors."""

    def make(metadata):
        writer = gguf.GGUFWriter(str(tmp_path / "vocabulary.gguf"), "llama")
        for key, value in metadata.items():
            _add(writer, key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "vocabulary.gguf"

    return make


@pytest.mark.parametrize("name", FOLDERS)
def test_the_same_ids(written, name):
    """Of every text, special tokens in it and bos before it; and the same text of ids."""
    folder = Path(FOLDERS[name])
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = read_tokenizer(written(vocabulary(folder)))
    for text in TEXTS:
        ids = theirs.encode(text).ids
        assert found.tokenizer.encode(text).ids == ids
        assert found.tokenizer.decode(ids) == theirs.decode(ids)
    special = {token.content for token in theirs.get_added_tokens_decoder().values()}
    assert {token.content for token in found.tokenizer.get_added_tokens_decoder().values()} == special
    assert found.named_tokens["eos_token"] in special
    assert (found.chat_template is not None) == (name == "byte-level")


def test_bos_and_eos_as_the_metadata_says(written):
    """`add_bos_token` and `add_eos_token` decide; else SentencePiece's texts begin with bos, byte-level ones do not."""
    metadata = vocabulary(Path(STORIES))
    plain = read_tokenizer(written({**metadata, "tokenizer.ggml.add_bos_token": False})).tokenizer.encode("a").ids
    assert read_tokenizer(written(metadata)).tokenizer.encode("a").ids == [1, *plain]
    both = {**metadata, "tokenizer.ggml.add_eos_token": True}
    assert read_tokenizer(written(both)).tokenizer.encode("a").ids == [1, *plain, 2]
    bare = read_tokenizer(written({**metadata, "tokenizer.ggml.add_space_prefix": False})).tokenizer
    assert bare.encode(" a").ids == [1, *plain] != bare.encode("a").ids
    assert bare.decode(plain) == " a"


def test_scores_decide_what_merges(written):
    """Of two neighbours those merge first that make the token with the highest score, wherever it stands."""
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc"]
    metadata = {"model": "llama", "tokens": tokens, "token_type": [2, 3, 3, 1, 1, 1, 1, 1], "add_bos_token": False}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in {**metadata, "add_space_prefix": False}.items()}
    for scores, pieces in (((-1.0, -2.0), ["ab", "c"]), ((-2.0, -1.0), ["a", "bc"])):
        found = read_tokenizer(written({**metadata, "tokenizer.ggml.scores": [0.0] * 6 + list(scores)}))
        assert found.tokenizer.encode("abc").tokens == pieces


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a 123 b's", ["a", "Ġ123", "Ġb", "'s"]),
        ("smollm", "a 12", ["a", "Ġ", "1", "2"]),
        ("llama-bpe", "a 12345'S\n\nx", ["a", "Ġ", "123", "45", "'S", "ĊĊ", "x"]),
        ("qwen2", "a 12\n", ["a", "Ġ", "1", "2", "Ċ"]),
        ("tekken", "aB 1", ["a", "B", "Ġ", "1"]),
    ],
)
def test_splits(written, pre, text, pieces):
    """Text is split as the vocabulary's merges were learned, by the name that llama.cpp gives it."""
    metadata = {**vocabulary(Path(MODEL_DIR)), "tokenizer.ggml.pre": pre}
    split = read_tokenizer(written(metadata)).tokenizer.pre_tokenizer
    assert [piece for piece, _ in split.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pre": "martian"}, "its tokenizer.ggml.pre is 'martian'"),
        ({"pre": None}, "its tokenizer.ggml.pre is ''"),
        ({"model": "t5"}, "model is 't5'"),
        ({"tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
    ],
)
def test_what_is_not_known_is_not_guessed(written, change, said):
    """Refused by its name, with what helps."""
    changed = {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(FileError, match=said) as refused:
        read_tokenizer(written({**vocabulary(Path(MODEL_DIR)), **changed}))
    assert "--tokenizer" in refused.value.hints[0]


@pytest.mark.parametrize("change", [{"merges": ["a b c"]}, {"merges": ["x1 y2"]}, {"token_type": [1]}, {"tokens": [1]}])
def test_damaged_vocabularies(written, change):
    """What does not belong together is damage."""
    changed = {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(ModelLoadError):
        read_tokenizer(written({**vocabulary(Path(MODEL_DIR)), **changed}))
