"""Where the tokenizer of a model is read: a folder, the hub, or the metadata of a GGUF file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.inference.engine.random_model import is_random
from lmtool.inference.text.workers import TRUSTED
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.model_names import GGUF

if TYPE_CHECKING:
    from collections.abc import Callable

    import tokenizers

    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.serving.config import ModelsConfig


def tokenizer_reader(
    models: ModelsConfig,
    source: str,
    revision: str | None,
    convert: Callable[[str], tokenizers.Tokenizer] | None = None,
) -> Callable[[], TextTokenizer]:
    """Reads the tokenizer of the model at `source` when it is called: the one that was asked for, else the model's own.

    A GGUF file has one in its metadata; a tokenizer.json beside it comes first. revision: of a hub model. convert, and
    what is raised: see `load_tokenizer`.
    """
    from lmtool.inference.text.tokenizer import load_tokenizer

    where, template = models.tokenizer_source(source)
    if source == str(MODEL_DIR):
        TRUSTED.add(json.loads((MODEL_DIR / "tokenizer_config.json").read_bytes())["chat_template"])
    parser = models.reasoning_parser_of(source)
    own = where == source
    if own and source.endswith(GGUF):
        if not Path(source).with_name("tokenizer.json").is_file():
            return partial(_within, source, template, parser)
        where = str(Path(source).parent)
    if is_random(where):
        return _no_tokenizer
    wanted = revision if own else None
    return partial(load_tokenizer, where, convert, revision=wanted, chat_template=template, reasoning_parser=parser)


def _no_tokenizer() -> TextTokenizer:
    raise FileError("a random model has no tokenizer", "take another model's:  --tokenizer MODEL")


def _within(source: str, template: str | None, parser: str | None) -> TextTokenizer:
    """The tokenizer in a GGUF file's metadata. template: in place of the file's own."""
    from lmtool.inference.engine.gguf.tokenizer import read_tokenizer
    from lmtool.inference.text.tokenizer import make_tokenizer

    found = read_tokenizer(Path(source))
    own = found.chat_template if template is None else template
    return make_tokenizer(found.tokenizer, Path(source).stem, found.tokenizer.to_str(), found.named_tokens, own, parser)
