"""The tree of commands: names, summaries and examples as the help shows them; modules are imported on call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_TABLE = """
Run
  serve        Serve models over LMTP and HTTP.
    $ lmtool serve
    $ lmtool serve Qwen/Qwen3-0.6B --port 8081
    $ lmtool serve ./my-model --api-keys keys.toml --host 0.0.0.0
  balance      Balance requests over several servers at one address.
    $ lmtool balance :8081 :8082
  gateway      Serve pools of providers behind one API, with fallback.
    $ lmtool gateway --config pools.yaml
    $ lmtool gateway --config pools.yaml --check
Ask
  pools        Show a gateway's pools: models, health, requests, costs.
    $ lmtool pools -e http://127.0.0.1:9099 --watch
  chat         Chat with a model: one answer, or a conversation.
    $ lmtool chat
    $ lmtool chat "Hello there max_tokens=5"
    $ lmtool chat -t 0.9 --seed 1 --heat "Tell me a story about a fox."
    $ git diff | lmtool chat "Describe this change:"
  history      List or remove saved conversations.
    $ lmtool history
    $ lmtool history --clear
  score        Compute logprobs, probabilities and perplexity of texts.
    $ lmtool score "The capital of France is" " Paris" " Rome"
    $ lmtool score --heat "Once upon a time"
  info         Describe a server's model and protocol.
    $ lmtool info
    $ lmtool info -e ws://10.0.0.5:8080/ --json
  tokenize     Show the tokens of a text: ids, texts, bytes.
    $ lmtool tokenize "Hello there"
    $ lmtool tokenize --decode 542 522 262
  evergreen    Chat, run scripts or list actions in an Evergreen session.
    chat       Chat in a session that sends only new messages.
      $ lmtool evergreen chat
    run        Send messages from a file; print the answers.
      $ lmtool evergreen run messages.jsonl
    actions    List the actions that a server offers.
      $ lmtool evergreen actions --json
    proto      Print the protocol's messages as a .proto file.
      $ lmtool evergreen proto > evergreen.proto
Traces
  trace        Record, replay, compare and edit conversations.
    record     Record the traffic between clients and a server.
      $ lmtool trace record --to ws://127.0.0.1:8080/ -O talk.lmtp.jsonl
      $ lmtool trace record --to http://127.0.0.1:8000/v1 --inspect
    serve      Answer requests as recorded: a mock server.
      $ lmtool trace serve talk.lmtp.jsonl
      $ lmtool trace serve talk.lmtp.jsonl --port 0 --speed max
    drive      Send a recording to a server; compare the answers.
      $ lmtool trace drive talk.lmtp.jsonl --to ws://127.0.0.1:8080/
    verify     Check recordings against our client and a server.
      $ lmtool trace verify recordings/ --serve lmtool-tiny
    show       Print a trace: one line per token or other event.
      $ lmtool trace show talk.lmtp.jsonl
      $ lmtool trace show talk.lmtp.jsonl --filter 'sid:3 p<.1'
    stats      Print token counts, speeds, and how each stream ended.
      $ lmtool trace stats talk.lmtp.jsonl
    diff       Compare two traces stream by stream.
      $ lmtool trace diff before.lmtp.jsonl after.lmtp.jsonl
    cut        Write the part of a trace between two times.
      $ lmtool trace cut talk.lmtp.jsonl --from 2 --to 5 -O part.lmtp.jsonl
    merge      Write the events of several traces in order of time.
      $ lmtool trace merge one.lmtp.jsonl two.lmtp.jsonl -O both.lmtp.jsonl
    redact     Write a copy without prompts, headers or texts.
      $ lmtool trace redact talk.lmtp.jsonl -O shared.lmtp.jsonl
    export     Write streams as a page or picture, or as an asciicast.
      $ lmtool trace export talk.lmtp.jsonl -O talk.html
      $ lmtool trace export before.lmtp.jsonl after.lmtp.jsonl -O compared.svg
    convert    Write a trace as CSV, Markdown, asciicast, HAR or wire log.
      $ lmtool trace convert talk.lmtp.jsonl --to markdown
  cache        Explain which prompts were computed again.
    why        Explain cached and computed prompts, request by request.
      $ lmtool cache why agent.lmtp.jsonl
  conformance  Test servers and clients against the LMTP specification.
    server     Test a server against each rule of the specification.
      $ lmtool conformance server ws://127.0.0.1:8080/
    client     Run a client against a scripted server.
      $ lmtool conformance client -- ./my-client {url}
  audit        Check that a server's logprobs are correct.
    $ lmtool audit http://127.0.0.1:8000/v1
Look
  inspect      Watch streams, probabilities and timing, live or from a trace.
    $ lmtool inspect
    $ lmtool inspect talk.lmtp.jsonl
    $ lmtool inspect --proxy 127.0.0.1:8081 --to http://127.0.0.1:8000/v1
  tour         Learn the inspector in two minutes.
    $ lmtool tour
    $ lmtool tour --restart
  bench        Benchmark engines on the same weights, or a running server.
    engine     Compare our engine with others on the same weights.
      $ lmtool bench engine
    serve      Load a server: latencies, throughput, goodput.
      $ lmtool bench serve --concurrency 1,8 --save before.json
Setup
  docs         Read the manual: one page, or the list of pages.
    $ lmtool docs
    $ lmtool docs serving
  models       List, load and unload models.
    $ lmtool models
    $ lmtool models --load Qwen/Qwen3-0.6B
  doctor       Check that this machine can serve models and chat.
    $ lmtool doctor
  config       Show the effective settings and their sources.
    show       Print all settings as TOML, with defaults as comments.
      $ lmtool config show chat
      $ lmtool config show > lmtool.toml
    path       Print the settings files that are read, strongest first.
      $ lmtool config path
"""
"""Help headings, below them commands or groups of commands, each with its summary and examples (`$`)."""
_MODULES = {
    **dict.fromkeys(("trace cut", "trace merge", "trace redact"), "trace.edit"),
    **dict.fromkeys(("balance", "pools"), "gateway"),
    "history": "chat",
}
"""Modules below `lmtool.cli`, where not named after the command or its group; those of `trace` have one each."""
_ALIASES = {"record": "trace record", "replay": "trace serve", "tui": "inspect"}
"""Second names of commands, which the help leaves out."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command; its summary is kept here so that the list of commands needs no import."""

    name: str
    summary: str
    examples: tuple[str, ...] = ()
    """Command lines shown in its help."""
    module: str = ""
    """Module below `lmtool.cli`."""
    function: str = ""
    """Function in `module`; empty: named after the command."""
    hidden: bool = False
    panel: str = ""
    """Heading in the help."""

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module = importlib.import_module(f"lmtool.cli.{self.module}")
        function: Callable[..., Any] = getattr(module, self.function or self.name)
        return function


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under a common name."""

    name: str
    summary: str
    commands: tuple[Command, ...]
    panel: str = ""
    hidden: bool = False


def _tree() -> tuple[Command | Group, ...]:
    rows: list[tuple[str, tuple[str, ...], str, list[str]]] = []  # heading, path, summary, examples
    panel = group = ""
    for line in _TABLE.strip().splitlines():
        word, _, rest = line.strip().partition(" ")
        if not line.startswith(" "):
            panel = line
        elif word == "$":
            rows[-1][3].append(rest)
        else:
            group = group if line.startswith("    ") else word
            rows.append((panel, (word,) if group == word else (group, word), rest.strip(), []))

    def command(panel: str, path: tuple[str, ...], summary: str, examples: list[str]) -> Command:
        return Command(path[-1], summary, tuple(examples), _module(" ".join(path)), panel=panel)

    entries: list[Command | Group] = []
    for row in rows:
        if len(row[1]) == 1:
            commands = tuple(command(*other) for other in rows if other[1][:-1] == row[1])
            entries.append(Group(row[1][0], row[2], commands, row[0]) if commands else command(*row))
    for name, meant in _ALIASES.items():
        function = meant.rpartition(" ")[2]
        entries.append(Command(name, f"Alias of `lmtool {meant}`.", (), _module(meant), function, hidden=True))
    return tuple(entries)


def _module(path: str) -> str:
    """Module of a command, below `lmtool.cli`. path: `trace show`."""
    group, _, name = path.partition(" ")
    return _MODULES.get(path) or (f"trace.{name}" if group == "trace" else group)


TREE = _tree()
"""All commands and groups in the order of the help."""


def find(name: str) -> Command | Group | None:
    """The command or group of this name at the top of the tree, or None."""
    return next((entry for entry in TREE if entry.name == name), None)
