"""The tree of commands: names, summaries, help panels; a command's module is imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Its summary stands here, so that the list of commands needs no import."""

    name: str
    summary: str
    examples: tuple[str, ...] = ()
    """Command lines for its help; those of a hidden command are its other name's."""
    module: str = ""
    """Below `lmtool.cli`; by default named as the command, below its group."""
    function: str = ""
    """The function in `module`; by default named as the command."""
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


def _command(
    name: str, summary: str, *examples: str, module: str = "", function: str = "", hidden: bool = False
) -> Command:
    return Command(name, summary, examples, module or name, function, hidden)


def _group(name: str, summary: str, *commands: Command) -> Group:
    """A group; modules of its commands that are named as they are stand below one of its name."""
    below = (replace(one, module=f"{name}.{one.name}") if one.module == one.name else one for one in commands)
    return Group(name, summary, tuple(below))


def _panel(heading: str, *entries: Command | Group) -> tuple[Command | Group, ...]:
    return tuple(replace(entry, panel=heading) for entry in entries)


TREE: tuple[Command | Group, ...] = (
    *_panel(
        "Run",
        _command(
            "serve",
            "Serve models over LMTP and HTTP.",
            "lmtool serve",
            "lmtool serve Qwen/Qwen3-0.6B --port 8081",
            "lmtool serve ./my-model --api-keys keys.toml --host 0.0.0.0",
        ),
        _command("balance", "Balance the load of many servers behind one address.", "lmtool balance :8081 :8082"),
        _command(
            "gateway",
            "Serve pools of providers: strategies, fallback, one API.",
            "lmtool gateway --config pools.yaml",
            "lmtool gateway --config pools.yaml --check",
        ),
    ),
    *_panel(
        "Ask",
        _command(
            "pools",
            "Show a gateway's pools: models, health, counts, costs.",
            "lmtool pools -e http://127.0.0.1:9099 --watch",
        ),
        _command(
            "chat",
            "Chat with a model: one answer, or a conversation.",
            "lmtool chat",
            'lmtool chat "Hello there max_tokens=5"',
            'lmtool chat -t 0.9 --seed 1 --heat "Tell me a story about a fox."',
            'git diff | lmtool chat "Describe this change:"',
        ),
        _command(
            "history", "List the conversations that are kept; remove them.", "lmtool history", "lmtool history --clear"
        ),
        _command(
            "score",
            "Compute logprob, probability and perplexity of texts.",
            'lmtool score "The capital of France is" " Paris" " Rome"',
            'lmtool score --heat "Once upon a time"',
        ),
        _command(
            "info",
            "Describe a server's model and protocol.",
            "lmtool info",
            "lmtool info -e ws://10.0.0.5:8080/ --json",
        ),
        _command(
            "tokenize",
            "Show the tokens of a text: ids, texts, bytes.",
            'lmtool tokenize "Hello there"',
            "lmtool tokenize --decode 542 522 262",
        ),
        _group(
            "evergreen",
            "Sessions of nodes and actions: chat, run a script, list actions.",
            _command("chat", "Chat in a session that sends only what is new.", "lmtool evergreen chat"),
            _command("run", "Send messages from a file; print the answers.", "lmtool evergreen run messages.jsonl"),
            _command("actions", "List the actions that a server offers.", "lmtool evergreen actions --json"),
            _command(
                "proto", "Print the protocol's messages as a .proto file.", "lmtool evergreen proto > evergreen.proto"
            ),
        ),
    ),
    *_panel(
        "Traces",
        _group(
            "trace",
            "Recorded conversations: record, replay, compare, edit.",
            _command(
                "record",
                "Record the traffic between clients and a server.",
                "lmtool trace record --to ws://127.0.0.1:8080/ -O talk.lmtp.jsonl",
                "lmtool trace record --to http://127.0.0.1:8000/v1 --inspect",
            ),
            _command(
                "serve",
                "Answer requests as recorded: a mock server.",
                "lmtool trace serve talk.lmtp.jsonl",
                "lmtool trace serve talk.lmtp.jsonl --port 0 --speed max",
            ),
            _command(
                "drive",
                "Send a recording to a server; compare the answers.",
                "lmtool trace drive talk.lmtp.jsonl --to ws://127.0.0.1:8080/",
            ),
            _command(
                "verify",
                "Check recordings against our client and a server.",
                "lmtool trace verify recordings/ --serve lmtool-tiny",
            ),
            _command(
                "show",
                "Print a trace: one line per token or other event.",
                "lmtool trace show talk.lmtp.jsonl",
                "lmtool trace show talk.lmtp.jsonl --filter 'sid:3 p<.1'",
            ),
            _command(
                "stats", "Print token counts, speeds, and how each stream ended.", "lmtool trace stats talk.lmtp.jsonl"
            ),
            _command(
                "diff", "Compare two traces stream by stream.", "lmtool trace diff before.lmtp.jsonl after.lmtp.jsonl"
            ),
            _command(
                "cut",
                "Write the part of a trace between two times.",
                "lmtool trace cut talk.lmtp.jsonl --from 2 --to 5 -O part.lmtp.jsonl",
                module="trace.edit",
            ),
            _command(
                "merge",
                "Write the events of several traces in order of time.",
                "lmtool trace merge one.lmtp.jsonl two.lmtp.jsonl -O both.lmtp.jsonl",
                module="trace.edit",
            ),
            _command(
                "redact",
                "Write a copy without prompts, headers or texts.",
                "lmtool trace redact talk.lmtp.jsonl -O shared.lmtp.jsonl",
                module="trace.edit",
            ),
            _command(
                "export",
                "Write streams as a page or picture to share, or an asciicast.",
                "lmtool trace export talk.lmtp.jsonl -O talk.html",
                "lmtool trace export before.lmtp.jsonl after.lmtp.jsonl -O compared.svg",
            ),
            _command(
                "convert",
                "Write a trace as CSV, Markdown, asciicast, HAR or wire log.",
                "lmtool trace convert talk.lmtp.jsonl --to markdown",
            ),
        ),
        _group(
            "cache",
            "What prompts have in common, and why they are computed again.",
            _command(
                "why",
                "Explain cached and computed prompts, request by request.",
                "lmtool cache why agent.lmtp.jsonl",
                module="cache",
            ),
        ),
        _group(
            "conformance",
            "The LMTP specification as tests, for any server and any client.",
            _command(
                "server",
                "Test a server against each rule of the specification.",
                "lmtool conformance server ws://127.0.0.1:8080/",
            ),
            _command(
                "client", "Run a client against a scripted server.", "lmtool conformance client -- ./my-client {url}"
            ),
        ),
        _command("audit", "Check that a server's logprobs are true.", "lmtool audit http://127.0.0.1:8000/v1"),
        _command("record", "The same as `lmtool trace record`.", module="trace.record", hidden=True),
        _command("replay", "The same as `lmtool trace serve`.", module="trace.serve", function="serve", hidden=True),
    ),
    *_panel(
        "Look",
        _command(
            "inspect",
            "Watch streams, probabilities, frames and time: live, or a trace.",
            "lmtool inspect",
            "lmtool inspect talk.lmtp.jsonl",
            "lmtool inspect --proxy 127.0.0.1:8081 --to http://127.0.0.1:8000/v1",
        ),
        _command("tour", "Learn the inspector in two minutes, by doing.", "lmtool tour", "lmtool tour --restart"),
        _command("tui", "The same as `lmtool inspect`.", module="inspect", function="inspect", hidden=True),
        _group(
            "bench",
            "Measure engines on the same weights, and running servers.",
            _command("engine", "Measure our engine beside others on the same weights.", "lmtool bench engine"),
            _command(
                "serve",
                "Load a server: latencies, throughput, goodput.",
                "lmtool bench serve --concurrency 1,8 --save before.json",
            ),
        ),
    ),
    *_panel(
        "Setup",
        _command("docs", "Read the manual: one page, or the list of pages.", "lmtool docs", "lmtool docs serving"),
        _command(
            "models",
            "List the available models: served, embedded, downloaded.",
            "lmtool models",
            "lmtool models --load Qwen/Qwen3-0.6B",
        ),
        _command("doctor", "Check what serving and chatting need; 1 if something is broken.", "lmtool doctor"),
        _group(
            "config",
            "Show effective settings and their origins.",
            _command(
                "show",
                "Print the settings as TOML: what is set where, and defaults.",
                "lmtool config show chat",
                "lmtool config show > lmtool.toml",
                module="config",
            ),
            _command(
                "path",
                "Print the settings files that are read, strongest first.",
                "lmtool config path",
                module="config",
            ),
        ),
    ),
)
"""In the order of the help."""


def find(name: str) -> Command | Group | None:
    """The command or group of this name at the top of the tree, or None."""
    return next((entry for entry in TREE if entry.name == name), None)
