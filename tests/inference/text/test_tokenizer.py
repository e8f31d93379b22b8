"""Text to ids and back, and the tokenizer's identity."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from lmtool.core.errors import ContextOverflowError, FileError, RequestError
from lmtool.core.prompt_limits import PromptLimits
from lmtool.core.types import ChatMessage, ChatPrompt, MixedPrompt, TokenizerInfo
from lmtool.inference.text.tokenizer import TextTokenizer, load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from tests.conftest import STORIES
from tests.inference.text.conftest import train_byte_level

EXTRA = json.loads((STORIES / "reference_extra.json").read_text())
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the stories tokenizer, to be changed."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORIES / name, tmp_path)
    return tmp_path


def configure(folder: Path, **settings: object) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize("case", EXTRA["tokenizer"], ids=lambda case: ascii(case["text"]))
def test_reference(stories: TextTokenizer, case: dict) -> None:
    """The stories tokenizer gives the reference's ids and texts."""
    assert stories.encode(case["text"]) == case["ids"]
    assert stories.encode(case["text"], special=False) == case["ids"][1:]
    assert stories.decode(case["ids"]) == case["decoded"]


def test_identity(stories: TextTokenizer) -> None:
    """A tokenizer is known by its folder's name and the hash of its tokenizer.json."""
    assert stories.info.name == "stories260K"
    assert stories.info.sha256 == hashlib.sha256((STORIES / "tokenizer.json").read_bytes()).hexdigest()
    assert stories.vocab_size == 512
    assert stories.special_ids == {0, 1, 2}
    assert (stories.token(407), stories.token(13), stories.token(512)) == ("▁upon", "<0x0A>", None)


def test_pieces(stories: TextTokenizer, byte_level: TextTokenizer) -> None:
    """An id's own bytes: a text, a part of a character, nothing for special and unknown ids."""
    assert [stories.piece(i) for i in (407, 3 + 0xF0, 1, 512, -1)] == [b" upon", b"\xf0", b"", b"", b""]
    assert b"".join(map(byte_level.piece, byte_level.encode("naïve 🙂"))) == "naïve 🙂".encode()
    words = Tokenizer(models.WordLevel({"word": 0}, unk_token="word"))
    assert TextTokenizer(words, stories.info, named_tokens={}).piece(0) == b"word"


def test_import_is_light() -> None:
    """Loading a tokenizer imports no torch, transformers, jinja2, huggingface_hub or asyncio."""
    code = (
        "import sys; from lmtool.inference.text.tokenizer import load_tokenizer\n"
        "load_tokenizer(sys.argv[1]).encode('a');"
        "print({'torch', 'transformers', 'jinja2', 'huggingface_hub', 'asyncio', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(STORIES)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_long_texts(stories: TextTokenizer) -> None:
    """A long text, encoded off the interpreter lock, gives the ids that its library gives it otherwise."""
    text = "Once upon a time, there was a café 🙂.\n" * 300
    for special in (True, False):
        assert stories.encode(text, special=special) == stories._tokenizer.encode(text, add_special_tokens=special).ids


@pytest.mark.parametrize("text", ["a\ud800b", "a\udfffb" * 5000], ids=["short", "long"])
def test_no_unicode(stories: TextTokenizer, text: str) -> None:
    """A lone surrogate is refused by name."""
    with pytest.raises(RequestError, match="surrogate"):
        stories.encode(text)


def test_many_threads(stories: TextTokenizer) -> None:
    """Several threads may use one tokenizer."""
    texts = [f"story {i} " * (i % 9 * 100) for i in range(64)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: stories.decode(stories.encode(text)), texts))
    assert found == texts


class TestContinuation:
    """`encode_continuation`: what follows another text."""

    @pytest.mark.parametrize("case", EXTRA["choice_scores"], ids=lambda case: case["prompt"])
    def test_reference(self, stories: TextTokenizer, case: dict) -> None:
        """Continuations of a prompt have the ids that the reference scores."""
        for choice in case["choices"]:
            assert stories.encode_continuation(choice["text"]) == choice["ids"]

    @given(text=st.text(st.sampled_from(list("ab \n=é🙂")), max_size=8))
    def test_prompt_and_continuation_are_the_text(self, stories: TextTokenizer, text: str) -> None:
        """The text of prompt and continuation is the two texts joined, with no blank between."""
        assert stories.decode([*stories.encode("Once"), *stories.encode_continuation(text)]) == "Once" + text

    @given(text=st.text(max_size=8))
    def test_byte_level(self, byte_level: TextTokenizer, text: str) -> None:
        """Where nothing is put in front of a text, a continuation is encoded like any text."""
        assert byte_level.encode_continuation(text) == byte_level.encode(text, special=False)


class TestSpecialTokens:
    """Special tokens never show."""

    def test_named_in_the_configuration(self, folder: Path) -> None:
        """A token that only the configuration calls special is one, and is found in texts as one."""
        configure(folder, eos_token={"content": "▁time", "lstrip": False}, pad_token="not in the vocabulary")
        tokenizer = load_tokenizer(str(folder))
        time = tokenizer._tokenizer.token_to_id("▁time")
        assert time in tokenizer.special_ids
        assert tokenizer.decode([403, time, 407]) == "Once upon"
        assert tokenizer.vocab_size == 512
        assert tokenizer.encode("a▁time", special=False)[-1] == time

    def test_own_rules_stay(self, stories: TextTokenizer) -> None:
        """A special token that takes the blanks around it goes on doing so when it is named."""
        library = Tokenizer(models.WordLevel({"a": 0, "<mask>": 1}, unk_token="a"))
        library.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
        tokenizer = TextTokenizer(library, stories.info, named_tokens={"mask_token": "<mask>"})
        assert tokenizer.encode("a <mask> a") == [0, 1, 0]
        assert library.get_added_tokens_decoder()[1].lstrip

    def test_no_truncation(self, folder: Path) -> None:
        """A tokenizer.json that truncates or pads does neither here."""
        library = Tokenizer.from_file(str(folder / "tokenizer.json"))
        library.enable_truncation(4)
        library.enable_padding(length=8)
        library.save(str(folder / "tokenizer.json"))
        tokenizer = load_tokenizer(str(folder))
        assert tokenizer.encode("Once upon a time") == [1, 403, 407, 261, 378]
        assert tokenizer.encode("Once") == [1, 403]


class TestChat:
    """`encode_prompt` of conversations, and where the template comes from."""

    def test_bos_once(self, folder: Path) -> None:
        """A template that writes bos gives one bos, one that does not gives none."""
        configure(folder, chat_template=CHATML)
        ids = load_tokenizer(str(folder)).encode_prompt(ChatPrompt((ChatMessage("user", "Once"),)))
        assert ids.count(1) == 1
        assert ids[0] == 1
        configure(folder, chat_template="{{ messages[0].content }}")
        assert load_tokenizer(str(folder)).encode_prompt(ChatPrompt((ChatMessage("user", "Once"),))) == [403]

    def test_file_wins(self, folder: Path) -> None:
        """chat_template.jinja is used rather than tokenizer_config.json's."""
        configure(folder, chat_template="old")
        (folder / "chat_template.jinja").write_text("new {{ messages[0].content }}")
        assert load_tokenizer(str(folder)).render_chat(ChatPrompt((ChatMessage("user", "x"),))) == "new x"

    def test_named_templates(self, folder: Path) -> None:
        """Of several named templates, the one called default is used."""
        configure(folder, chat_template=[{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}])
        assert load_tokenizer(str(folder)).render_chat(ChatPrompt((ChatMessage("user", "x"),))) == "d"
        configure(folder, chat_template=[{"name": "rag", "template": "r"}])
        assert not load_tokenizer(str(folder)).has_chat_template

    def test_bos_from_the_older_file(self, folder: Path) -> None:
        """special_tokens_map.json names the tokens that tokenizer_config.json does not."""
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ bos_token }}|{{ pad_token }}"}))
        (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "other": 3}))
        assert load_tokenizer(str(folder)).render_chat(ChatPrompt((ChatMessage("user", "x"),))) == "<s>|"

    def test_no_template(self, stories: TextTokenizer) -> None:
        """Without a template, messages are refused with what to do instead."""
        assert not stories.has_chat_template
        with pytest.raises(RequestError, match="no chat template") as caught:
            stories.encode_prompt(ChatPrompt((ChatMessage("user", "x"),)))
        assert caught.value.hints


def test_a_template_in_place_of_the_models_own() -> None:
    """What the server was given counts."""
    own = load_tokenizer(str(MODEL_DIR))
    assert "<|im_start|>user" in own.render_chat(ChatPrompt((ChatMessage("user", "Hi"),)))
    other = load_tokenizer(str(MODEL_DIR), chat_template="{{ messages[0].content }}")
    assert other.render_chat(ChatPrompt((ChatMessage("user", "Hi"),))) == "Hi"


class TestPrompts:
    """`encode_prompt`: every form of a prompt becomes ids here and nowhere else."""

    CHAT = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{{ messages[0].content }}{{ end }}"

    def test_a_conversation(self, folder: Path) -> None:
        """Tools and the template's own variables are rendered; the prefill is a continuation behind the template."""
        tokenizer = load_tokenizer(str(folder), chat_template=self.CHAT)
        tool = {"type": "function", "function": {"name": "f"}}
        chat = ChatPrompt((ChatMessage("user", "Once"),), (tool,), {"end": "!"}, "upon")
        assert tokenizer.render_chat(chat) == "[f]Once!"
        rendered = tokenizer.encode("[f]Once!", special=False)
        assert tokenizer.encode_prompt(chat) == rendered + tokenizer.encode_continuation("upon")
        assert tokenizer.decode(tokenizer.encode_prompt(chat)).endswith("Once!upon")

    def test_exact_ids_in_a_conversation(self, byte_level: TextTokenizer) -> None:
        """The ids of a turn stand where its text would, whatever the tokenizer would make of it."""
        template = "{% for m in messages %}<|user|>{{ m.content | trim }}<|end|>{% endfor %}"
        tokenizer = TextTokenizer(train_byte_level(), byte_level.info, named_tokens={}, template=template)
        odd = tuple(tokenizer.encode("q") + tokenizer.encode("u") + tokenizer.encode("ick"))
        assert odd != tuple(tokenizer.encode("quick"))
        first, last = ChatMessage("user", "The quick"), ChatMessage("user", "brown fox")
        whole = ChatPrompt((first, ChatMessage("assistant", "quick"), last))
        exact = ChatPrompt((first, ChatMessage("assistant", "", tokens=odd), last))
        quick, ids = tuple(tokenizer.encode("quick")), tuple(tokenizer.encode_prompt(whole))
        at = next(n for n in range(4, len(ids)) if ids[n : n + len(quick)] == quick)
        assert tuple(tokenizer.encode_prompt(exact)) == (*ids[:at], *odd, *ids[at + len(quick) :])

    @pytest.mark.parametrize(
        "template", ["{{ messages | length }}", "{% for m in messages * 2 %}{{ m.content }}{% endfor %}"]
    )
    def test_exact_ids_without_a_place(self, byte_level: TextTokenizer, template: str) -> None:
        """A template that leaves a turn out, or repeats it, has no place for ids."""
        tokenizer = TextTokenizer(train_byte_level(), byte_level.info, named_tokens={}, template=template)
        with pytest.raises(RequestError, match=r"messages\[1\]"):
            tokenizer.encode_prompt(ChatPrompt((ChatMessage("user", "a"), ChatMessage("user", "", tokens=(1,)))))

    def test_texts_and_ids(self, stories: TextTokenizer) -> None:
        """The first text begins as texts do, with bos; those behind it add nothing of their own."""
        ids = stories.encode_prompt(MixedPrompt(("Once", (403, 407), " upon")))
        assert ids == [*stories.encode("Once"), 403, 407, *stories.encode_continuation(" upon")]
        assert stories.encode_prompt(MixedPrompt(((403,), "Once"))) == [403, *stories.encode_continuation("Once")]
        assert stories.encode_prompt((5, 6)) == [5, 6]


class TestToolCalls:
    """`tool_calls`: how a model writes calls, as its template and its special tokens tell."""

    @pytest.mark.parametrize(
        ("template", "name"),
        [
            ("{% if tools %}<tool_call>{% endif %}", "hermes"),
            ("{% if tools %}<tool_call><function={% endif %}", "none"),
            ("{% if tools %}<tool_call>\n<function=f>\n<parameter=a>{% endif %}", "qwen3_coder"),
            ("{% if tools %}<tool_call>{{ name }}<arg_key>{% endif %}", "glm45"),
            ("{{ tools }}<\uff5ctool▁calls▁begin\uff5c>function ```json", "deepseek_v3"),
            ("{{ tools }}<\uff5ctool▁calls▁begin\uff5c>", "deepseek_v31"),
            ("{{ tools }}<|tool_calls_section_begin|>", "kimi_k2"),
            ("{{ tools }}<|tool_call|>", "granite"),
            ("{{ tools }}<function_call>", "granite-20b-fc"),
            ("{{ tools }}<|channel|>commentary to=functions.f<|message|>", "openai"),
            ("{{ tools }} [func_name1(param1=value1)]", "pythonic"),
            ("{{ tools }}[TOOL_CALLS]", "mistral"),
            ("{{ tools }}<|python_tag|>", "llama3_json"),
            ('{{ tools }} "parameters" ipython', "llama3_json"),
            ("{{ tools }}", "none"),
            ("<tool_call>", "none"),
        ],
    )
    def test_the_format_of_a_template(self, folder: Path, template: str, name: str) -> None:
        """A template without tools teaches none."""
        found = load_tokenizer(str(folder), chat_template=template).tool_calls
        assert (found.name, found.templated, dict(found.special_tokens)) == (name, "tools" in template, {})

    def test_marks_that_are_special_tokens(self) -> None:
        """They do not show as text, so their ids are told; marks that are text are not."""
        raw = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
        raw.add_special_tokens(["<tool_call>"])
        raw.add_tokens(["</tool_call>"])
        found = TextTokenizer(raw, TokenizerInfo("t", ""), named_tokens={}).tool_calls
        assert dict(found.special_tokens) == {"<tool_call>": raw.token_to_id("<tool_call>")}


class TestFolders:
    """What may be wrong with a folder."""

    def test_no_tokenizer_json(self, tmp_path: Path) -> None:
        """A folder without tokenizer.json is an error that says how to make one."""
        with pytest.raises(FileError, match=r"no tokenizer\.json") as caught:
            load_tokenizer(str(tmp_path))
        assert "save_pretrained" in caught.value.hints[0]

    def test_converted(self, tmp_path: Path) -> None:
        """Where a converter is given, it makes the tokenizer of a folder without tokenizer.json."""
        asked = []

        def convert(name: str) -> Tokenizer:
            asked.append(name)
            return Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))

        tokenizer = load_tokenizer(str(tmp_path), convert)
        assert asked == [str(tmp_path)]
        assert tokenizer.encode("a") == [0]
        assert len(tokenizer.info.sha256) == 64

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
    @pytest.mark.parametrize("text", ["{", "[]", '"a"', ""])
    def test_broken_files(self, folder: Path, name: str, text: str) -> None:
        """A broken file is an error that names it and says what to do."""
        (folder / name).write_text(text)
        with pytest.raises(FileError, match=name) as caught:
            load_tokenizer(str(folder))
        assert caught.value.hints


class Counting:
    """A tokenizer of which it is known how many characters it was given."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self._inner.encode(text, **options)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._inner.encode_batch_fast(texts, **options)


class TestLimits:
    """A tokenizer for a model whose context is known."""

    @pytest.fixture
    def bounded(self, folder: Path) -> tuple[TextTokenizer, Counting]:
        tokenizer = load_tokenizer(str(folder), chat_template="{% for m in messages %}{{ m.content * 3 }}{% endfor %}")
        tokenizer.limits = PromptLimits("m", 100).with_text_limit(tokenizer.longest_token_bytes)
        tokenizer._tokenizer = counting = Counting(tokenizer._tokenizer)  # type: ignore[assignment]
        return tokenizer, counting

    def test_longest_token(self, stories: TextTokenizer, byte_level: TextTokenizer) -> None:
        """No token stands for more bytes of a text."""
        for tokenizer in (stories, byte_level):
            longest = max(len(tokenizer.piece(token)) for token in range(tokenizer.vocab_size))
            assert longest <= tokenizer.longest_token_bytes < 50

    @pytest.mark.parametrize("text", ["a" * 4_000_000, " " * 4_000_000, "\u3042" * 40_000])
    def test_a_text_that_cannot_fit(self, bounded: tuple[TextTokenizer, Counting], text: str) -> None:
        """It is refused by its bytes alone: no tokenizer sees it, nor what a template would make of it."""
        tokenizer, counting = bounded
        for encode in (
            lambda: tokenizer.encode(text),
            lambda: tokenizer.encode_continuation(text),
            lambda: tokenizer.encode_prompt(ChatPrompt((ChatMessage("user", text),))),
        ):
            with pytest.raises(ContextOverflowError, match=r"too long: at least \d+ tokens > 100 maximum"):
                encode()
        with pytest.raises(
            ContextOverflowError,
            match="at least 1000000 tokens > 100 maximum",
        ) as raised:
            tokenizer.encode_prompt(ChatPrompt((ChatMessage("user", ""),) * 1_000_000))
        assert raised.value.hints == ("leave out the oldest of 1000000 messages",)
        assert counting.characters == 0

    def test_what_the_template_makes(self, bounded: tuple[TextTokenizer, Counting]) -> None:
        """It is refused as any text."""
        tokenizer, counting = bounded
        assert tokenizer.limits is not None
        assert tokenizer.limits.text_bytes is not None
        with pytest.raises(ContextOverflowError, match=r"too long: at least \d+ tokens > 100 maximum"):
            tokenizer.encode_prompt(ChatPrompt((ChatMessage("user", "a" * (tokenizer.limits.text_bytes // 2)),)))
        assert counting.characters == 0

    def test_a_text_that_does_not_fit(self, bounded: tuple[TextTokenizer, Counting]) -> None:
        """Where its bytes do not tell, its beginning does."""
        tokenizer, counting = bounded
        with pytest.raises(ContextOverflowError, match=r"too long: at least \d+ tokens > 100 maximum"):
            tokenizer.encode("Once upon a time. " * 150)
        assert 0 < counting.characters <= 1600

    def test_a_text_that_fits(self, bounded: tuple[TextTokenizer, Counting], stories: TextTokenizer) -> None:
        """It has the ids that it always had; so has one that is a little too long, which is for the model to refuse."""
        tokenizer, _ = bounded
        for text in ("Once upon a time. " * 10, "Once upon a time. " * 25, "a" * 190):
            assert tokenizer.encode(text) == stories.encode(text)
        assert len(stories.encode("Once upon a time. " * 25)) > 100


class TestWithoutWaiting:
    """What is asked in an event loop."""

    async def test_ids(self, folder: Path) -> None:
        """Of any prompt, short or long: the same as when waited for."""
        tokenizer = load_tokenizer(
            str(folder), chat_template="{% for m in messages %}{{ m.content }}{% endfor %}{{ x }}"
        )
        for text in ("Once upon", "Once upon a time. " * 1000):
            chat = ChatPrompt((ChatMessage("user", text),))
            assert await tokenizer.tokenize(text) == tokenizer.encode(text)
            assert await tokenizer.tokenize(text, special=False) == tokenizer.encode(text, special=False)
            for prompt in (chat, replace(chat, chat_template_kwargs={"x": "!"}), replace(chat, prefill=text)):
                assert await tokenizer.tokenize(prompt) == tokenizer.encode_prompt(prompt)
        assert await tokenizer.tokenize((3, 4)) == [3, 4]
        assert await tokenizer.tokenize(()) == []

    async def test_text(self, stories: TextTokenizer) -> None:
        """Of few ids and of many."""
        for count in (3, 10_000):
            assert await stories.detokenize([403] * count) == " Once".lstrip() + " Once" * (count - 1)


TOKEN = {"id": 512, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
TOKEN["special"] = True
DOUBLES = {"type": "Replace", "pattern": {"Regex": "."}, "content": "xx"}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def frame(count: int) -> dict[str, Any]:
    parts = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<s>": {"id": "<s>", "ids": [1] * count, "tokens": ["<s>"] * count}}
    return {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": special}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """A folder whose tokenizer.json is the stories model's with changes; a member of `model` is changed within it."""

    def write(settings: str = "{}", **changes: Any) -> str:
        content = json.loads((STORIES / "tokenizer.json").read_text())
        content["model"] |= changes.pop("model", {})
        (tmp_path / "tokenizer.json").write_text(json.dumps(content | changes))
        (tmp_path / "tokenizer_config.json").write_text(settings)
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"vocab": {"a": 10**9}}}, r"Expected `int` <= 16777215 - at `\$.model.vocab"),
        ({"model": {"vocab": {"a": -1}}}, "-1"),
        ({"model": {"vocab": None, "merges": "x"}}, "MergeType"),
        ({"added_tokens": [TOKEN | {"id": -1}]}, "-1"),
        ({"added_tokens": [TOKEN | {"content": "x" * 5_000_000}]}, "its added tokens have 5000000 characters"),
        ({"added_tokens": [TOKEN] * 200_000}, "array` of length <= 131072 - at `\\$.added_tokens"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 300}}, "more than 256 times as long"),
        ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 26}}, "more than 256 times as long"),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLES] * 26}}, "more than 256 times as long"),
        ({"post_processor": frame(1000)}, "it adds 1000 tokens to each text; expected 256 at most"),
        ({"pre_tokenizer": split("(")}, "Oniguruma error"),
        ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"}}, "cannot be used: .*Missing .UNK. token"),
        ({"model": {"vocab": {"zz": 0}, "merges": []}}, "cannot be used: .*`<unk>` not found"),
    ],
)
def test_refused(written: Callable[..., str], changes: dict[str, Any], sentence: str) -> None:
    """Ids, lengths and sizes that no tokenizer has, and tokenizers that cannot encode a letter, at load."""
    with pytest.raises(FileError, match=sentence):
        load_tokenizer(written(**changes))


@pytest.mark.parametrize(
    "settings",
    [
        '{"bos_token": ' + "[" * 100_000,
        '{"eos_token": "\\ud800"}',
        '{"chat_template": "\\ud800"}',
        '{"model_max_length": ' + "9" * 5000 + "}",
        "[]",
    ],
    ids=["nested", "surrogate", "template", "digits", "list"],
)
def test_settings_refused(written: Callable[..., str], settings: str) -> None:
    """Settings that are nested without end, or hold what is no text, are refused by the file's name."""
    with pytest.raises(FileError, match=r"tokenizer_config\.json (is no JSON|holds list)"):
        load_tokenizer(written(settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"model_max_length": 10**30},
        {"model_max_length": "long", "bos_token": 5, "eos_token": {"content": 5}, "chat_template": 7},
        {"chat_template": [{"name": ["default"], "template": "a"}, 5]},
        {"added_tokens_decoder": {"99999999999": {"content": "a", "special": True}}},
    ],
)
def test_what_is_not_used(written: Callable[..., str], settings: dict[str, Any]) -> None:
    """Settings of other kinds than expected count as absent."""
    assert load_tokenizer(written(json.dumps(settings))).encode("hi") == load_tokenizer(str(STORIES)).encode("hi")


def test_long_files(tmp_path: Path) -> None:
    """A file of 128 MiB or more is not read."""
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FileError, match=r"tokenizer\.json has 1099511627776 bytes"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    "part", [{"pre_tokenizer": split("(a+)+$")}, {"normalizer": DOUBLES | {"pattern": {"Regex": "(a+)+$"}}}]
)
def test_backtracking(written: Callable[..., str], part: dict[str, Any]) -> None:
    """A regular expression that goes beyond the library's own limit fails its request, and no more."""
    tokenizer = load_tokenizer(written(**part))
    with pytest.raises(RequestError, match=r"the model's tokenizer fails on this text: .*retry-limit"):
        tokenizer.encode("a" * 40 + "!")
    assert tokenizer.encode("b")


def test_decoding(written: Callable[..., str]) -> None:
    """So does one of the decoder."""
    long = TOKEN | {"content": "a" * 40, "special": False}
    tokenizer = load_tokenizer(written(decoder=DOUBLES | {"pattern": {"Regex": "(a+)+b"}}, added_tokens=[long]))
    with pytest.raises(RequestError, match=r"the model's tokenizer fails on this text: .*retry-limit"):
        tokenizer.decode([512])


def test_dropout(written: Callable[..., str]) -> None:
    """Random merges are for training: a text has the same ids each time."""
    tokenizer = load_tokenizer(written(model={"dropout": 0.9}))
    assert [tokenizer.encode("once upon a time") for _ in range(5)] == [tokenizer.encode("once upon a time")] * 5
    assert tokenizer.encode("once upon a time") == load_tokenizer(str(STORIES)).encode("once upon a time")
