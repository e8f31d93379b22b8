"""Makes the source that the command line names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from lmtool.core.errors import ConnectError, FileError, LmtoolError, TimeLimitError, UsageError
from lmtool.net.access.outgoing import split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.types import GenerateRequest, ModelInfo, TokenizerInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.serving.access_config import AccessConfig
    from lmtool.terminal.tui.options import SourceOptions
    from lmtool.terminal.tui.request_builder import TextToScore
    from lmtool.terminal.tui.sources.source import Source

PROBE_LIMIT = 1.0
"""Seconds to wait for a server at the default address before starting the demo."""
_ADDRESS = re.compile(r"(\w+://|stdio:|unix:|:\d+|(?:[^\s/@]*@)?[\w.-]+:\d+/?$)")


@dataclass(slots=True)
class SourceFactory:
    """Makes the source. `warn` gets sentences, now and while the source runs."""

    options: SourceOptions
    warn: Callable[[str], None]
    access: AccessConfig
    """Access rules for the port of `--proxy`."""
    local_tokenizer: Callable[[TokenizerInfo], TextTokenizer | None]
    """Finds a tokenizer on this machine; may block."""
    _tokenizer: TextTokenizer | None = field(default=None)

    async def make(self) -> Source:
        """The source; needs a running loop. Raises `UsageError`, `FileError`, `ResourceError`, ..."""
        options = self.options
        if options.tokenizer is not None:
            from lmtool.inference.text.tokenizer import load_tokenizer
            from lmtool.inference.tiny.path import source_of

            self._tokenizer = load_tokenizer(source_of(options.tokenizer))
        if (options.proxy is None) != (options.to is None):
            raise UsageError("--proxy LISTEN and --to URL belong together", "give both, or neither")
        if options.proxy is not None and options.to is not None:
            return self._proxy(options.proxy, options.to)
        if len(options.targets) > 1:
            raise UsageError(
                f"{len(options.targets)} targets were given: {' '.join(options.targets)}",
                "name one server, one trace, or two traces to compare",
            )
        self._check_servers()
        target = next(iter((*options.targets, *options.connect)), options.endpoint)
        if target is None:
            return await self._default()
        return self._connect(target) if is_address(target) else self._file(Path(target))

    def _check_servers(self) -> None:
        """Raise `UsageError` for more servers than are asked, and for a text that no server is named to score."""
        options = self.options
        if len(options.connect) > (1 if options.text is None else 2):
            raise UsageError(
                f"--connect names {len(options.connect)} servers",
                "two score one text side by side:  lmtool inspect --text FILE --connect A --connect B",
            )
        if options.text is not None and any(not is_address(target) for target in options.targets):
            raise UsageError("--text is scored by a server, and a trace is none", "leave the trace, or --text, out")
        if len(options.connect) == 2 and options.targets:
            raise UsageError("a TARGET and two servers of --connect are three", f"leave {options.targets[0]} out")

    def make_second(self) -> Source | None:
        """The second server that scores the text; None if there is only one. Raises `UsageError`."""
        if len(self.options.connect) < 2:
            return None
        from lmtool.terminal.tui.sources.connect import ConnectSource

        endpoint = beside(self._endpoint(self.options.connect[1]))
        return ConnectSource(endpoint, self.warn, find_tokenizer=self.find_tokenizer, scores=self._scores(), stay=False)

    def _scores(self) -> list[TextToScore]:
        from lmtool.terminal.tui.request_builder import TextToScore

        content = self.options.content
        return [TextToScore("", (), content, whole=content, model=self.options.model)] if content else []

    def find_tokenizer(self, info: ModelInfo) -> TextTokenizer | None:
        """The tokenizer of a served model; None if it is not on this machine."""
        if self._tokenizer is not None or info.tokenizer is None:
            return self._tokenizer
        return self.local_tokenizer(info.tokenizer)

    def _proxy(self, listen: str, to: str) -> Source:
        from lmtool.serving.listening import bind_proxy, parse_listen, proxy_url
        from lmtool.terminal.tui.sources.proxy import ProxySource
        from lmtool.trace.proxy import parse_target
        from lmtool.trace.recorder import TokenSpelling

        if self.options.text is not None or len(self.options.connect) > 1:
            raise UsageError("--proxy watches other programs; --text is scored by a server", "leave one of them out")
        if self.options.targets:
            raise UsageError("--proxy watches other programs; it goes with no TARGET", "leave one of them out")
        target = parse_target(to)
        place = parse_listen(listen)
        policy = self.access.policy(place, self.options.api_key)
        for sentence in policy.warnings(public=place.public):
            self.warn(sentence)
        sockets = bind_proxy(place, "--proxy")
        if target.authorization is not None:
            self.warn("the key in --to is for requests from here: clients of the proxy show their own")
        own = None if target.url.startswith("http") else self._endpoint(to)
        source = ProxySource(
            target,
            sockets,
            self.warn,
            find_tokenizer=self.find_tokenizer,
            spell=None if self._tokenizer is None else TokenSpelling(self._tokenizer),
            endpoint=self._endpoint(self.options.connect[0]) if self.options.connect else own,
            http=parse_target(to, self.options.api_key),
            policy=policy,
        )
        source.url = proxy_url(place, sockets, target)
        return source

    def _file(self, path: Path) -> Source:
        from lmtool.terminal.tui.sources.source import FileSource

        if not path.exists():
            raise FileError(
                f"there is no file {str(path)!r}, and it is no address either",
                "a trace:   lmtool inspect NAME.lmtp.jsonl",
                "a server:  lmtool inspect ws://HOST:PORT/",
            )
        connect = next(iter(self.options.connect), None)
        if connect is not None and _speaks_http_alone(connect):
            from lmtool.trace.proxy import parse_target

            target = parse_target(connect, self.options.api_key)
            return FileSource(path, self.warn, find_tokenizer=self.find_tokenizer, http=target)
        endpoint = None if connect is None else self._endpoint(connect)
        return FileSource(path, self.warn, find_tokenizer=self.find_tokenizer, endpoint=endpoint)

    def _endpoint(self, address: str) -> Endpoint:
        from lmtool.protocol.lmtp.endpoint import parse

        return parse(address, self.options.api_key)

    def _connect(self, url: str) -> Source:
        from lmtool.terminal.tui.sources.connect import ConnectSource

        if url.startswith(("http://", "https://")) and "/v1" in url:
            address = split_url(url)[0]
            raise UsageError(
                f"{address} speaks OpenAI's API: watch what its clients say",
                f"lmtool inspect --proxy 127.0.0.1:8081 --to {address}",
            )
        others: Literal["no", "if possible", "only"] = "if possible" if self.options.stay else "only"
        return ConnectSource(
            beside(self._endpoint(url)),
            self.warn,
            find_tokenizer=self.find_tokenizer,
            model=self.options.model,
            prompts=self._requests(self.options.prompts),
            scores=self._scores(),
            stay=self.options.stay,
            others="no" if (self.options.prompts or self.options.content) and not self.options.stay else others,
        )

    async def _default(self) -> Source:
        from lmtool.serving.composition import need_serve_packages
        from lmtool.terminal.tui.sources.demo import PROMPTS, DemoSource, demo_server

        if await _answers(self._endpoint(self.options.default)):
            return self._connect(self.options.default)
        try:
            need_serve_packages()
        except LmtoolError as missing:
            raise ConnectError(
                f"no LMTP server at {split_url(self.options.default)[0]}, and the demo cannot start: {missing.message}",
                *missing.hints,
                "or point at a server:  lmtool inspect ws://HOST:PORT/",
            ) from None
        return DemoSource(
            demo_server,
            self.warn,
            find_tokenizer=self.find_tokenizer,
            prompts=self._requests(self.options.prompts or (() if self.options.content else PROMPTS)),
            scores=self._scores(),
            stay=self.options.stay,
        )

    def _requests(self, lines: Sequence[str]) -> Sequence[GenerateRequest]:
        from lmtool.terminal.tui.sources.demo import SAMPLING, racing

        return racing(lines, replace(SAMPLING, max_tokens=self.options.max_tokens))


def beside(endpoint: Endpoint) -> Endpoint:
    """A server's Unix socket, over which its user may watch it; the endpoint itself if there is none."""
    from lmtool.net.unix_sockets import PREFIX, socket_beside
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint

    if not isinstance(endpoint, SocketEndpoint) or not endpoint.loopback or not endpoint.url.startswith("ws://"):
        return endpoint
    path = socket_beside(urlsplit(endpoint.url).port or 80)
    return endpoint if path is None else replace(endpoint, url=f"{PREFIX}{path}")


def is_address(text: str) -> bool:
    """True for a server, not a file: `ws://...`, `HOST:PORT`, `:PORT`, `unix:PATH`, `stdio:COMMAND`."""
    return _ADDRESS.match(text) is not None and not Path(text).is_file()


def _speaks_http_alone(url: str) -> bool:
    """True for the address of an HTTP API below a path, such as `http://HOST/v1`."""
    return url.startswith(("http://", "https://")) and urlsplit(url).path.strip("/") != ""


def is_file(target: str) -> bool:
    """True if a target is an existing file."""
    return Path(target).exists()


async def _answers(endpoint: Endpoint) -> bool:
    """True if a server answers. Raises `AccessDeniedError` if it requires another key."""
    from lmtool.protocol.lmtp.client import LmtpClient

    try:
        async with LmtpClient(endpoint, open_timeout=PROBE_LIMIT):
            return True
    except (ConnectError, TimeLimitError):
        return False
