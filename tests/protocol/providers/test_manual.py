"""The gateway's page of the manual says what the table of providers says."""

from __future__ import annotations

from pathlib import Path

from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS
from lmtool.protocol.providers.embeddings_and_speech import has_embeddings, has_speech
from lmtool.protocol.providers.provider import Provider
from lmtool.protocol.providers.registry import ANTHROPIC, AZURE, COHERE_V1, COHERE_V2, OLLAMA, OPENAI

PAGE = Path(__file__).parent.parent.parent.parent / "lmtool/docs/gateway.md"
COLUMNS = (OPENAI, AZURE, ANTHROPIC, COHERE_V1, COHERE_V2, OLLAMA)
FEATURES = ("tools", "tool_choice", "response_format", "logprobs", "top_logprobs", "images", "image_urls", "sounds")


def row(name: str, cells: list[str]) -> str:
    """A line of the table."""
    return f"| {' | '.join([name, *cells])} |"


def parameter(provider: Provider, name: str) -> str:
    """Whether a provider takes a parameter."""
    return "yes" if name in provider.parameters else "compatible" if name in provider.compatible_parameters else "-"


def test_the_table_of_providers() -> None:
    """Each parameter and feature has its line, with what each provider takes."""
    rows = [row(f"`{name}`", [parameter(one, name) for one in COLUMNS]) for name in UNIFIED_PARAMETERS]
    rows += [row(name, ["yes" if name in one.features else "-" for one in COLUMNS]) for name in FEATURES]
    rows.append(row("embeddings", ["yes" if has_embeddings(one) else "-" for one in COLUMNS]))
    rows.append(row("speech", ["yes" if has_speech(one) else "-" for one in COLUMNS]))
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in rows if line not in lines] == []
