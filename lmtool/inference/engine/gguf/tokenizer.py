"""The tokenizer and chat template that a GGUF file's metadata describes, for the `tokenizers` library.

How text is split before it is merged is in the file as a name only (`tokenizer.ggml.pre`): the expressions for
the names are llama.cpp's (src/llama-vocab.cpp). A name that is not known here is refused, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lmtool.core.errors import FileError
from lmtool.inference.engine.gguf.header import read_header

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.inference.engine.gguf.header import GgufFile

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
"""`tokenizer.ggml.token_type`."""
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Names of tokens in chat templates, to the metadata's names of their ids."""
_SPACE = "▁"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PARTS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _PARTS
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _PARTS
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """Rules that split the text of a byte-level vocabulary."""

    patterns: tuple[str, ...]
    """Applied one after the other."""
    whole_words: bool = False
    """True if a piece that is a token is never merged from parts (`ignore_merges`)."""
    bos: bool = False
    """True if a text begins with bos where the metadata does not say."""


_SPLITS = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jina-es", "jina-de"), _Split((_GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _Split((r"\p{N}", _GPT2))),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _Split((_LLAMA3,), whole_words=True, bos=True)
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx"), _Split((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), _Split((_QWEN2,))),
    "tekken": _Split((_TEKKEN,), whole_words=True, bos=True),
}
"""By `tokenizer.ggml.pre`."""


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """Tokenizer, named tokens and chat template of a file."""

    tokenizer: Tokenizer
    named_tokens: dict[str, str]
    """`bos_token`, `eos_token` and such to their texts."""
    chat_template: str | None


def read_tokenizer(path: Path) -> GgufTokenizer:
    """The tokenizer of a file. Raises `FileError` where it has none, or one that is not known here.

    Raises `ModelLoadError` for what is not a valid GGUF file.
    """
    file = read_header(path)
    tokens = _texts(file, "tokens")
    kinds = _kinds(file, len(tokens))
    model = file.text("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer, bos = _byte_level(file, tokens)
    elif model == "llama":
        tokenizer, bos = _sentencepiece(file, tokens, kinds), True
    else:
        raise _unknown(file, f"its tokenizer.ggml.model is {model!r}")
    special = [_added(token, special=True) for token, kind in zip(tokens, kinds, strict=True) if kind in _SPECIAL]
    plain = [_added(token, special=False) for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
    named = {name: token for name, key in _NAMED.items() if (token := _token(file, key, tokens)) is not None}
    _frame(tokenizer, file, named, bos=bos)
    return GgufTokenizer(tokenizer, named, file.text("tokenizer.chat_template") or None)


_SPECIAL = {_UNKNOWN, _CONTROL}


def _added(token: str, *, special: bool) -> AddedToken:
    return AddedToken(token, normalized=False, special=special)


def _byte_level(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, bool]:
    """GPT-2's kind: merges of bytes. And whether a text begins with bos where the metadata does not say."""
    name = file.text("tokenizer.ggml.pre")
    split = _SPLITS.get(name)
    if split is None:
        raise _unknown(file, f"its tokenizer.ggml.pre is {name!r}")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in _texts(file, "merges")]
    if not all(len(pair) == 2 and set(pair) <= vocabulary.keys() and "".join(pair) in vocabulary for pair in merges):
        raise file.fault("its tokenizer.ggml.merges do not belong to its tokens")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole_words))  # type: ignore[arg-type]
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    pieces = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in split.patterns]
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*pieces, levels])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, split.bos


def _sentencepiece(file: GgufFile, tokens: list[str], kinds: list[int]) -> Tokenizer:
    """SentencePiece's BPE: of two neighbours those merge first that make the token with the highest score."""
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(one, float) for one in scores):
        raise file.fault("its tokenizer.ggml.scores do not belong to its tokens")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = _merges(vocabulary, [float(one) for one in scores], kinds)
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaced = file.flag("tokenizer.ggml.add_space_prefix", default=True)
    replaced = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replaced]) if spaced else replaced
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(back + ([decoders.Strip(" ", 1, 0)] if spaced else []))
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float], kinds: list[int]) -> list[tuple[str, str]]:
    """All pairs of tokens that make a third, the best first."""
    mergeable = {token for token, number in vocabulary.items() if kinds[number] in (_NORMAL, _USER_DEFINED)}
    candidates = [
        (-scores[vocabulary[token]], vocabulary[token], token[:at], token[at:])
        for token in mergeable
        for at in range(1, len(token))
        if token[:at] in mergeable and token[at:] in mergeable
    ]
    candidates.sort(key=lambda pair: (pair[0], pair[1], -len(pair[2])))
    return [(left, right) for *_, left, right in candidates]


def _frame(tokenizer: Tokenizer, file: GgufFile, named: dict[str, str], *, bos: bool) -> None:
    """Let a text begin with bos and end with eos, where the metadata wants that."""
    begins = [named["bos_token"]] if "bos_token" in named else []
    ends = [named["eos_token"]] if "eos_token" in named else []
    begins *= file.flag("tokenizer.ggml.add_bos_token", default=bos)
    ends *= file.flag("tokenizer.ggml.add_eos_token", default=False)
    parts = [*begins, "$A", *ends]
    if len(parts) > 1:
        ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(parts) if token in named.values()]
        pair = [*parts, *begins, "$B", *ends]
        tokenizer.post_processor = processors.TemplateProcessing(single=parts, pair=pair, special_tokens=ids)


def _texts(file: GgufFile, key: str) -> list[str]:
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        raise _unknown(file, f"it has no tokenizer.ggml.{key}")
    texts = [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(texts) != len(value):
        raise file.fault(f"its tokenizer.ggml.{key} is not a list of texts")
    return texts


def _kinds(file: GgufFile, count: int) -> list[int]:
    """Types of the tokens; all are normal where the file does not say."""
    values = file.metadata.get("tokenizer.ggml.token_type", [_NORMAL] * count)
    kinds = [one for one in values if type(one) is int] if isinstance(values, list) else []
    if len(kinds) != count:
        raise file.fault("its tokenizer.ggml.token_type does not belong to its tokens")
    return kinds


def _token(file: GgufFile, key: str, tokens: list[str]) -> str | None:
    number = file.whole(f"tokenizer.ggml.{key}")
    return tokens[number] if number is not None and 0 <= number < len(tokens) else None


def _unknown(file: GgufFile, reason: str) -> FileError:
    return FileError(
        f"no tokenizer can be made of {file.path}: {reason}",
        "give the model's own, a folder or a hub name:  --tokenizer NAME",
        "or put its tokenizer.json beside the file",
    )
