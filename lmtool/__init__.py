"""Load a language model once, in a long-lived process; stream its tokens to everything else.

`connect(url)` and `load(model)` give a `Model` behind a socket or in this process, `serve(model)` offers one to
others, `session(url)` speaks Evergreen with a server, `pools(url)` the unified API with a gateway. Names are loaded
when they are first used: `import lmtool` alone costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know this name; importing `typing` for it would take most of this file's time

if TYPE_CHECKING:
    from lmtool.api import Model, Server, action, connect, load, serve, session
    from lmtool.core.errors import LmtoolError
    from lmtool.core.types import ChatMessage, ModelInfo, TokenOutput
    from lmtool.gateway.pools.client import pools

__version__ = "0.1.0"
__all__ = [
    "ChatMessage",
    "LmtoolError",
    "Model",
    "ModelInfo",
    "Server",
    "TokenOutput",
    "__version__",
    "action",
    "connect",
    "load",
    "pools",
    "serve",
    "session",
]

_HOMES = {
    **dict.fromkeys(("Model", "Server", "action", "connect", "load", "serve", "session"), "lmtool.api"),
    **dict.fromkeys(("ChatMessage", "ModelInfo", "TokenOutput"), "lmtool.core.types"),
    "LmtoolError": "lmtool.core.errors",
    "pools": "lmtool.gateway.pools.client",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module it lives in."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'lmtool' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
