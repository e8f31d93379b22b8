"""What `lmtool inspect` watches, from the words on its command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.access.outgoing import split_url
from lmtool.cli.serving.access import AccessConfig
from lmtool.errors import ConnectError, FileError, LmtoolError, TimeLimitError, UsageError

if TYPE_CHECKING:
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.tui.sources.source import Source
    from lmtool.types import GenerateRequest, ModelInfo

PROBE_LIMIT = 1.0
"""Seconds that a server at the default address has to answer before the demo begins."""
_ADDRESS = re.compile(r"(\w+://|stdio:|:\d+|(?:[^\s/@]*@)?[\w.-]+:\d+/?$)")


@dataclass(frozen=True, slots=True, repr=False)
class Wanted:
    """What the command line says about the source; addresses in it may have credentials."""

    targets: tuple[str, ...] = ()
    """A URL, a file, or two files."""
    endpoint: str | None = None
    """The server of `--endpoint`; None where nobody said."""
    default: str = ""
    """The server to look for where nothing is named."""
    connect: str | None = None
    """Where branches of a file, or of an HTTP proxy, run."""
    proxy: str | None = None
    to: str | None = None
    access: AccessConfig = field(default_factory=AccessConfig)
    """The proxy's door; its key is shown to servers, too."""
    model: str | None = None
    tokenizer: str | None = None
    prompts: tuple[str, ...] = ()
    tokens: int = 128
    """Most tokens of an answer to each prompt."""
    stay: bool = True
    """Whether to go on once the prompts were answered."""


@dataclass(slots=True)
class Chooser:
    """Makes the source. `warn` gets sentences, now and while the source runs."""

    wanted: Wanted
    warn: Callable[[str], None]
    _own: TextTokenizer | None = field(default=None)

    async def choose(self) -> Source:
        """The source; needs a running loop. Raises `UsageError`, `FileError`, `ResourceError`, ..."""
        wanted = self.wanted
        if wanted.tokenizer is not None:
            from lmtool.text.tokenizer import load_tokenizer

            self._own = load_tokenizer(wanted.tokenizer)
        if (wanted.proxy is None) != (wanted.to is None):
            raise UsageError("--proxy LISTEN and --to URL belong together", "give both, or neither")
        if wanted.proxy is not None and wanted.to is not None:
            return self._proxy(wanted.proxy, wanted.to)
        if len(wanted.targets) > 1:
            raise UsageError(f"{len(wanted.targets)} targets were given", "name one URL, one trace, or two traces")
        target = wanted.targets[0] if wanted.targets else wanted.connect or wanted.endpoint
        if target is None:
            return await self._default()
        return self._connect(target) if is_address(target) else self._file(Path(target))

    def find_tokenizer(self, info: ModelInfo) -> TextTokenizer | None:
        """The tokenizer of a served model, where it is on this machine."""
        from lmtool.cli.talking.peer import tokenizer_here

        if self._own is not None or info.tokenizer is None:
            return self._own
        return tokenizer_here(info.tokenizer)

    def _proxy(self, listen: str, to: str) -> Source:
        from lmtool.cli.proxying import bound, listen_config, proxy_url
        from lmtool.trace.proxy import parse_target
        from lmtool.tui.sources.proxy import ProxySource

        if self.wanted.targets:
            raise UsageError("--proxy watches other programs; it goes with no TARGET", "leave one of them out")
        target, place = parse_target(to), listen_config(listen)
        policy = self.wanted.access.policy(place)
        for sentence in policy.warnings(public=place.public):
            self.warn(sentence)
        if target.authorization is not None:
            self.warn("the key in --to is for requests from here: clients of the proxy show their own")
        sockets = bound(place, "--proxy")
        own = self._endpoint(to) if target.url.startswith("ws") else None
        source = ProxySource(
            target,
            sockets,
            self.warn,
            find_tokenizer=self.find_tokenizer,
            spell=None if self._own is None else self._own.piece,
            ask=own if self.wanted.connect is None else self._endpoint(self.wanted.connect),
            policy=policy,
        )
        source.url = proxy_url(place, sockets, target)
        return source

    def _file(self, path: Path) -> Source:
        from lmtool.tui.sources.file import FileSource

        if not path.exists():
            raise FileError(
                f"there is no file {str(path)!r}, and it is no address either",
                "a trace:   lmtool inspect NAME.lmtp.jsonl",
                "a server:  lmtool inspect ws://HOST:PORT/",
            )
        ask = None if self.wanted.connect is None else self._endpoint(self.wanted.connect)
        return FileSource(path, self.warn, find_tokenizer=self.find_tokenizer, ask=ask)

    def _endpoint(self, address: str) -> Endpoint:
        from lmtool.lmtp.endpoint import parse

        return parse(address, self.wanted.access.api_key)

    def _connect(self, url: str) -> Source:
        from lmtool.tui.sources.connect import ConnectSource

        if url.startswith(("http://", "https://")) and "/v1" in url:
            shown = split_url(url)[0]
            raise UsageError(
                f"{shown} speaks OpenAI's API: watch what its clients say",
                f"lmtool inspect --proxy 127.0.0.1:8081 --to {shown}",
            )
        return ConnectSource(
            self._endpoint(url),
            self.warn,
            find_tokenizer=self.find_tokenizer,
            model=self.wanted.model,
            prompts=self._requests(self.wanted.prompts),
            stay=self.wanted.stay,
        )

    async def _default(self) -> Source:
        from lmtool.cli.inspecting.demo_server import demo_server
        from lmtool.cli.wiring import need_serve_packages
        from lmtool.tui.sources.demo import PROMPTS, DemoSource

        if await _answers(self._endpoint(self.wanted.default)):
            return self._connect(self.wanted.default)
        try:
            need_serve_packages()
        except LmtoolError as missing:
            raise ConnectError(
                f"no LMTP server at {split_url(self.wanted.default)[0]}, and the demo cannot start: {missing.message}",
                *missing.hints,
                "or point at a server:  lmtool inspect ws://HOST:PORT/",
            ) from None
        return DemoSource(
            demo_server,
            self.warn,
            find_tokenizer=self.find_tokenizer,
            prompts=self._requests(self.wanted.prompts or PROMPTS),
            stay=self.wanted.stay,
        )

    def _requests(self, prompts: Sequence[str]) -> Sequence[GenerateRequest]:
        from dataclasses import replace

        from lmtool.tui.sources.demo import SAMPLING, racing

        return racing(prompts, replace(SAMPLING, max_tokens=self.wanted.tokens))


def is_address(text: str) -> bool:
    """Whether a target is a server, not a file: `ws://...`, `HOST:PORT`, `:PORT`, `stdio:COMMAND`."""
    return _ADDRESS.match(text) is not None and not Path(text).is_file()


def is_file(target: str) -> bool:
    """Whether a target is there to be read."""
    return Path(target).exists()


async def _answers(endpoint: Endpoint) -> bool:
    """Whether a server is there. Raises `AccessDeniedError` for one that wants another key."""
    from lmtool.cli.wiring import connect

    try:
        async with connect(endpoint, open_timeout=PROBE_LIMIT):
            return True
    except (ConnectError, TimeLimitError):
        return False
