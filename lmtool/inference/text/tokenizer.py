"""Text to token ids and back, with the `tokenizers` library alone: no torch, no transformers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer

from lmtool.core.errors import FileError, RequestError
from lmtool.core.fingerprint import fingerprint
from lmtool.core.reasoning import ReasoningFormat
from lmtool.core.types import BufferSlice, ChatPrompt, MixedPrompt, TokenizerInfo, ToolCallFormat
from lmtool.inference.text.detokenizer import PieceDetokenizer, WindowDetokenizer, pieces, spelling
from lmtool.inference.text.files import locate, read_text
from lmtool.inference.text.reasoning_parsers import NONE, find_parser, parser_of, with_openings
from lmtool.inference.text.workers import LONG, TRUSTED, prompt_size, run_in_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.interfaces import Detokenizer
    from lmtool.core.prompt_limits import PromptLimits
    from lmtool.core.types import Prompt
    from lmtool.inference.text.chat_template import ChatTemplate

    Convert: TypeAlias = Callable[[str], Tokenizer]
    from collections.abc import Iterator


_FIRST_CHARACTERS = 8
"""Characters per token of the context in the first part that is checked; texts seldom have more."""
_ANCHORS = ("\n", "=", "\x02")
"""Texts that rarely merge with the text after them."""
_DEEPSEEK_MARKS = tuple(
    f"<\uff5ctool▁{name}\uff5c>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
TOOL_CALL_MARKS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *_DEEPSEEK_MARKS,
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call|>", "<function_call>", "<|python_start|>", "<|python_end|>"),
)
"""Marks around tool calls that are special tokens in some vocabularies."""


def load_tokenizer(
    name_or_folder: str,
    convert: Convert | None = None,
    *,
    revision: str | None = None,
    chat_template: str | None = None,
    reasoning_parser: str | None = None,
) -> TextTokenizer:
    """Return the tokenizer of a model, by its hub name or local folder. Blocks: reads files, may download them.

    revision: branch, tag or commit of a hub model; None: its main branch. chat_template: Jinja source in place of the
    model's own. reasoning_parser: how the model writes thoughts, by name; None: as its chat template tells.

    Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja. convert: makes the
    tokenizer of a model that has no tokenizer.json from its older files; called with `name_or_folder`.

    Raises `ModelLoadError` when there is no such model, `FileError` when its files are missing or broken.
    """
    name, folder = locate(name_or_folder, revision)
    if (path := folder / "tokenizer.json").is_file():
        text = read_text(path)
        tokenizer = parse_tokenizer(text, str(path))
    elif convert is not None:
        tokenizer = convert(name_or_folder)
        text = tokenizer.to_str()
    else:
        raise FileError(
            f"{name_or_folder!r} has no tokenizer.json",
            "save the model's tokenizer in today's format with transformers: "
            f"AutoTokenizer.from_pretrained({name_or_folder!r}).save_pretrained(FOLDER)",
        )
    settings: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path := folder / file).is_file():
            settings |= parse_object(read_text(path), str(path))
    path = folder / "chat_template.jinja"
    template = chat_template
    if template is None:
        template = read_text(path) if path.is_file() else _default_template(settings.get("chat_template"))
    return make_tokenizer(tokenizer, name, text, _named_tokens(settings), template, reasoning_parser)


def make_tokenizer(
    tokenizer: Tokenizer,
    name: str,
    text: str,
    named_tokens: Mapping[str, str],
    template: str | None,
    parser: str | None,
) -> TextTokenizer:
    """A `TextTokenizer` around `tokenizer`, which belongs to it then. text: its tokenizer.json. parser: of thoughts."""
    info = TokenizerInfo(name, hashlib.sha256(text.encode()).hexdigest())
    try:
        loaded = TextTokenizer(tokenizer, info, named_tokens=named_tokens, template=template)
    except RequestError as error:
        raise FileError(f"the tokenizer of {name} cannot be used: {error.message}", "download it again") from error
    if parser is not None:
        find_parser(parser)
        loaded.reasoning_parser = parser
    return loaded


class TextTokenizer:
    """An `interfaces.Tokenizer`. May be used from several threads at once.

    Special tokens (bos, eos, turn markers) never show as text, wherever they stand.
    """

    def __init__(
        self, tokenizer: Tokenizer, info: TokenizerInfo, *, named_tokens: Mapping[str, str], template: str | None = None
    ) -> None:
        """Wrap a tokenizer, which then belongs to this object.

        named_tokens: `bos_token`, `eos_token` and such to their texts; they count as special. template: Jinja source.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        named = [text for text in named_tokens.values() if tokenizer.token_to_id(text) is not None]
        tokenizer.add_special_tokens([text for text in named if text not in added])
        self._tokenizer = tokenizer
        self.info = info
        """The tokenizer's identity: its name and the hash of its tokenizer.json."""
        self._named_tokens = named_tokens
        self._template = template
        self.isolates_chats = template is not None and template not in TRUSTED
        """True if conversations are rendered in another process, see `workers`."""
        self.limits: PromptLimits | None = None
        """Prompt limits of the model; longer texts are refused before or soon after tokenizing starts."""
        self.special_ids = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
        """Ids that never show as text."""
        self.reasoning_parser = parser_of(template or "")
        """Format of the model's thoughts: the name of a `reasoning_parser.ReasoningParser`."""
        self._pieces = pieces(tokenizer, self.special_ids)
        self._prefixes = self._adds_prefix()

    @cached_property
    def digest(self) -> str:
        """Hash of everything its ids and texts depend on: tokenizer.json, names of special tokens, chat template."""
        return fingerprint({"json": self.info.sha256, "named": dict(self._named_tokens), "template": self._template})

    @property
    def reasoning(self) -> ReasoningFormat | None:
        """Format of the model's thoughts, see `ModelInfo.reasoning`."""
        name = self.reasoning_parser
        return None if name == NONE else ReasoningFormat(name, "reasoning_effort" in (self._template or ""))

    def special_marks(self, marks: Sequence[str]) -> dict[int, str]:
        """Given texts that are special tokens, by their ids."""
        ids = {self._tokenizer.token_to_id(mark): mark for mark in marks}
        return {number: mark for number, mark in ids.items() if number in self.special_ids}

    @property
    def has_chat_template(self) -> bool:
        """True if a `ChatPrompt` can be encoded."""
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        """Number of token ids that have a meaning; a model's logits may have more."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token, as it is spelled in the vocabulary."""
        return max(len(token.encode()) for token in self._tokenizer.get_vocab(with_added_tokens=True))

    def to_json(self) -> str:
        """Return a complete tokenizer.json, including special tokens that other files name."""
        return self._tokenizer.to_str()

    def token(self, token_id: int) -> str | None:
        """Return an id's spelling in the vocabulary, such as `Ġthe` or `<0x0A>`; None for an unknown id."""
        return spelling(self._tokenizer, token_id)

    def piece(self, token_id: int) -> bytes:
        """Bytes that an id adds to a text, maybe part of a character; none for special and unknown ids.

        Where that depends on the neighbours, what the id gives alone.
        """
        if self._pieces is None:
            return self.decode([token_id]).encode()
        piece = self._pieces[token_id]
        return piece.encode() if isinstance(piece, str) else piece

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; `special` adds what the model expects at a text's start, such as its bos id.

        Raises `RequestError` for a text that is no Unicode (lone surrogates), or beyond `limits`.
        """
        if self.limits is not None:
            self.limits.check_text(text)
            self._check_beginnings(text, self.limits)
        return self._encode(text, special=special)

    def _check_beginnings(self, text: str, limits: PromptLimits) -> None:
        """Refuse a text early if its first part alone has too many tokens: encoding all of it would take seconds."""
        characters = _FIRST_CHARACTERS * limits.context_length
        while characters < len(text):
            limits.check_beginning(len(self._encode(text[:characters], special=False)))
            characters *= 2

    def _encode(self, text: str, *, special: bool) -> list[int]:
        with library_errors():
            if len(text) < LONG:
                return self._tokenizer.encode(text, add_special_tokens=special).ids
            # This one works without the interpreter lock.
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of a text that continues another, without bos or a leading blank."""
        plain = self.encode(text, special=False)
        if not self._prefixes:
            return plain
        # Behind a text that does not merge with it, the tokenizer puts nothing in front of this one.
        for anchor in _ANCHORS:
            before = self.encode(anchor, special=False)
            both = self.encode(anchor + text, special=False)
            if both[: len(before)] == before:
                return both[len(before) :]
        return plain

    @cached_property
    def tool_calls(self) -> ToolCallFormat:
        """Format of the model's tool calls, from its chat template and special tokens."""
        ids = {mark: self._tokenizer.token_to_id(mark) for mark in TOOL_CALL_MARKS}
        special = {mark: number for mark, number in ids.items() if number in self.special_ids}
        template = self._template or ""
        return ToolCallFormat(_tool_call_format(template), special, templated="tools" in template)

    def encode_prompt(self, prompt: Prompt, *, special: bool = True) -> list[int]:
        """Token ids of a prompt in any form, see `interfaces.Tokenizer`.

        A conversation ends where the assistant's answer begins, or behind its `prefill`. The template itself writes bos
        where the model wants one.
        """
        if isinstance(prompt, str):
            return self.encode(prompt, special=special)
        if isinstance(prompt, ChatPrompt):
            if self.limits is not None:
                self.limits.check_messages(prompt)
            parts, render = self._chat.render_parts(prompt), self.render_chat
            ids = self._encode_turns(with_openings(parts, prompt, self.reasoning_parser, render, self._spell))
            return ids + self.encode_continuation(prompt.prefill) if prompt.prefill else ids
        if isinstance(prompt, MixedPrompt):
            return self._encode_parts(prompt.parts, special=special)
        return list(prompt)

    def _encode_parts(self, parts: Sequence[str | tuple[int, ...] | BufferSlice], *, special: bool) -> list[int]:
        ids: list[int] = []
        for at, part in enumerate(parts):
            if isinstance(part, BufferSlice):
                raise RequestError(f"buffer {part.buffer!r} is kept by no connection here", "send its ids")
            if isinstance(part, str):
                ids += self.encode_continuation(part) if at else self.encode(part, special=special)
            else:
                ids += part
        return ids

    def _encode_turns(self, parts: Sequence[str | tuple[int, ...]]) -> list[int]:
        """Token ids of a rendered conversation; an end-of-turn mark that a turn already has is not repeated."""
        ids: list[int] = []
        for at, part in enumerate(parts):
            if not isinstance(part, str):
                ids += part
                continue
            encoded = self.encode_continuation(part) if at else self.encode(part, special=False)
            ends_alike = at and parts[at - 1] and encoded[:1] == ids[-1:]
            ids += encoded[1:] if ends_alike and ids[-1] in self.special_ids else encoded
        return ids

    def _spell(self, token: int) -> bytes:
        """Bytes of a token; for a special token, its name."""
        return (self.token(token) or "").encode() if token in self.special_ids else self.piece(token)

    def render_chat(self, chat: ChatPrompt) -> str:
        """The text that the chat template makes of a conversation, without its `prefill`. Raises `RequestError`."""
        return self._chat.render(chat)

    @cached_property
    def _chat(self) -> ChatTemplate:
        """The model's chat template. Raises `RequestError` where there is none."""
        if self._template is None:
            raise RequestError(
                f"the tokenizer {self.info.name!r} has no chat template, so messages cannot be sent",
                "send a prompt instead",
            )
        from lmtool.inference.text.chat_template import ChatTemplate

        return ChatTemplate(self._template, self._named_tokens)

    async def tokenize(self, prompt: Prompt, *, special: bool = True) -> list[int]:
        """`encode_prompt` without blocking the event loop: a long prompt is encoded in a worker thread."""
        size = prompt_size(prompt, isolated=self.isolates_chats)
        if size >= LONG:
            return await run_in_worker(size, self.encode_prompt, prompt, special=special)
        return self.encode_prompt(prompt, special=special)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """`decode` without blocking the event loop."""
        if len(tokens) >= LONG:
            return await run_in_worker(len(tokens), self.decode, tokens)
        return self.decode(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence of ids, special tokens left out; equals what a stream of them shows."""
        detokenizer = self.detokenizer()
        return "".join([detokenizer.push(token) for token in tokens]) + detokenizer.finish()

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for a stream that continues `context` (its prompt)."""
        if self._pieces is not None:
            return PieceDetokenizer(self._pieces, context)
        return WindowDetokenizer(library_errors()(self._tokenizer.decode), self._visible, context)

    def _visible(self, token_id: int) -> bool:
        return token_id not in self.special_ids and self.token(token_id) is not None

    def _adds_prefix(self) -> bool:
        """True if a text at the start is encoded differently from the same text after another."""
        first = self._encode("a", special=False)
        behind = self.detokenizer(context=first)
        return "".join([behind.push(token) for token in first]) + behind.finish() != "a"


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token`, `eos_token` and such; files give them as a text or as an object with `content`."""
    found = {}
    for key, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            found[key] = content
    return found


_FORMS_BY_SIGNS = (
    ("openai", ("<|channel|>", "<|message|>", "functions")),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", (_DEEPSEEK_MARKS[0], "```json")),
    ("deepseek_v31", (_DEEPSEEK_MARKS[0],)),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("none", ("<tool_call>", "<function=")),
    ("hermes", ("<tool_call>",)),
    ("granite", ("<|tool_call|>",)),
    ("granite-20b-fc", ("<function_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("pythonic", ("func_name1(",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('"parameters"', "ipython")),
)
"""Signs of each tool-call format in a chat template; the first match counts."""


def _tool_call_format(template: str) -> str:
    """Return the name of the format that a chat template teaches; `none` without tools or for an unknown format."""
    if "tools" not in template:
        return "none"
    return next((name for name, signs in _FORMS_BY_SIGNS if all(sign in template for sign in signs)), "none")


def _default_template(setting: object) -> str | None:
    """Return the template from tokenizer_config.json: one text, or a list of named ones."""
    if isinstance(setting, list):
        named = [entry for entry in setting if isinstance(entry, dict) and entry.get("name") == "default"]
        setting = named[0].get("template") if named else None
    return setting if isinstance(setting, str) else None


_MOST_ADDED_CHARACTERS = 1 << 22
"""Most characters of all added tokens: the library uses about 60 bytes of memory for each."""
_MOST_GROWTH = 256
"""Most characters that normalization or decoding may produce from one."""
_MOST_FRAMING = 256
"""Most tokens added around each text, such as bos."""


class _Stage(msgspec.Struct):
    content: str = ""
    prepend: str = ""
    pattern: dict[str, str] = {}  # msgspec copies it
    normalizers: list[_Stage] = []
    decoders: list[_Stage] = []

    def growth(self) -> int:
        """Most characters produced from one; a regular expression may also match between two."""
        own = max(1, len(self.content) + (not self.pattern.get("String"))) + len(self.prepend)
        return math.prod((stage.growth() for stage in (*self.normalizers, *self.decoders)), start=own)


class _AddedToken(msgspec.Struct):
    content: str = ""


class _Model(msgspec.Struct):
    vocab: dict[str, Annotated[int, Meta(lt=1 << 24)]] | list[Any] | None = None  # llguidance has a row for each id


class _File(msgspec.Struct):
    added_tokens: Annotated[list[_AddedToken], Meta(max_length=1 << 17)] = []
    normalizer: _Stage | None = None
    decoder: _Stage | None = None
    model: _Model | None = None


def parse_tokenizer(text: str, where: str) -> Tokenizer:
    """Parse a tokenizer.json. where: the file, for the error.

    Raises `FileError`, also for one with which loading, or encoding a text, would not end or would fill memory.
    """
    try:
        _check(msgspec.json.decode(text, type=_File))
        tokenizer = Tokenizer.from_str(text)
        _check_framing(tokenizer)
    except Exception as error:  # tokenizers raises nothing finer
        raise FileError(
            f"{where} is no tokenizer that this version of `tokenizers` can read: {error}",
            "download it again, or upgrade with: pip install -U tokenizers",
        ) from error
    if getattr(tokenizer.model, "dropout", None):  # for training: the same text would have other ids each time
        tokenizer.model.dropout = None
    return tokenizer


def _check(file: _File) -> None:
    if (size := sum(len(token.content) for token in file.added_tokens)) > _MOST_ADDED_CHARACTERS:
        raise ValueError(f"its added tokens have {size} characters; expected {_MOST_ADDED_CHARACTERS} at most")
    for stage in (file.normalizer, file.decoder):
        if stage is not None and stage.growth() > _MOST_GROWTH:
            raise ValueError(f"its normalizer or decoder can make a text more than {_MOST_GROWTH} times as long")


def _check_framing(tokenizer: Tokenizer) -> None:
    if (added := tokenizer.num_special_tokens_to_add(is_pair=False)) > _MOST_FRAMING:
        raise ValueError(f"it adds {added} tokens to each text; expected {_MOST_FRAMING} at most")


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object of a file of settings. where: the file, for the error. Raises `FileError`."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # also for a lone surrogate
        raise FileError(f"{where} is no JSON: {error}", "download it again") from error
    if not isinstance(value, dict):
        raise FileError(f"{where} holds {type(value).__name__}, a JSON object was expected", "download it again")
    return value


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Convert errors and panics of the `tokenizers` library to `RequestError`."""
    try:
        yield
    except TypeError as error:  # what it says of surrogates; the type itself is known here
        raise RequestError(
            "the text holds a surrogate (U+D800 to U+DFFF) without its pair, which is no character",
            "leave it out, or send both halves",
        ) from error
    except BaseException as error:  # it raises nothing finer, and a panic is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RequestError(f"the model's tokenizer fails on this text: {str(error)[:200]}", "send token ids") from error
