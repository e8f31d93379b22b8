"""`lmtool evergreen chat`: a conversation in one session, whose earlier turns are not sent again."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from lmtool.cli.chat import MODEL
from lmtool.cli.common_options import ClientCommon
from lmtool.cli.evergreen.options import GRPC, address
from lmtool.core.sampling_parameters import PARAMETER_HELP
from lmtool.settings.option import option


def chat(
    common: ClientCommon,
    *,
    model: str | None = MODEL,
    grpc: str | None = GRPC,
    system: str | None = option(None, "System prompt.", short="-s", metavar="TEXT"),
    max_tokens: int | None = option(None, PARAMETER_HELP["max_tokens"], short="-n", minimum=1),
    temperature: float | None = option(None, PARAMETER_HELP["temperature"], short="-t", minimum=0),
    options: list[str] | None = option(
        None, "Set any sampling parameter; repeatable.", flag="--option", short="-o", metavar="NAME=VALUE"
    ),
    stats: bool = option(False, "Show token counts after each answer, on stderr."),
) -> Coroutine[Any, Any, None]:
    """Chat with a model: each line of stdin is a turn, and only what is new is sent.

    Ctrl-C cancels a running answer, Ctrl-D leaves.
    """
    from lmtool.settings.prompt_parameters import parse_options
    from lmtool.terminal.chat.evergreen import converse

    given = {"max_tokens": max_tokens, "temperature": temperature, **parse_options(options or [])}
    config = {name: value for name, value in given.items() if value is not None}
    url = address(common, grpc)
    return converse(url, common.api_key, common.output(), config, model=model or "", system=system, stats=stats)
