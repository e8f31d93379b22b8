"""The tree of commands: names, summaries, help panels; a command's module is imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Its summary stands here, so that the list of commands needs no import."""

    name: str
    module: str
    """Below `lmtool.cli`."""
    summary: str
    panel: str = ""
    """Heading in the help."""
    function: str = ""
    """The function in `module`; by default named as the command."""
    hidden: bool = False

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


TREE: tuple[Command | Group, ...] = (
    Command("serve", "serve", "Serve models over LMTP and HTTP.", "Run"),
    Command("balance", "balance", "Balance the load of many servers behind one address.", "Run"),
    Command("gateway", "gateway", "Serve pools of providers: strategies, fallback, one API.", "Run"),
    Command("pools", "pools", "Show a gateway's pools: models, health, counts, costs.", "Ask"),
    Command("chat", "chat", "Chat with a model: one answer, or a conversation.", "Ask"),
    Command("score", "score", "Compute logprob, probability and perplexity of texts.", "Ask"),
    Command("info", "info", "Describe a server's model and protocol.", "Ask"),
    Command("tokenize", "tokenize", "Show the tokens of a text: ids, texts, bytes.", "Ask"),
    Group(
        "evergreen",
        "Sessions of nodes and actions: chat, run a script, list actions.",
        (
            Command("chat", "evergreen.chat", "Chat in a session that sends only what is new."),
            Command("run", "evergreen.run", "Send messages from a file; print the answers."),
            Command("actions", "evergreen.actions", "List the actions that a server offers."),
            Command("proto", "evergreen.proto", "Print the protocol's messages as a .proto file."),
        ),
        "Ask",
    ),
    Group(
        "trace",
        "Recorded conversations: record, replay, compare, edit.",
        (
            Command("record", "trace.record", "Record the traffic between clients and a server."),
            Command("serve", "trace.serve", "Answer requests as recorded: a mock server."),
            Command("drive", "trace.drive", "Send a recording to a server; compare the answers."),
            Command("verify", "trace.verify", "Check recordings against our client and a server."),
            Command("show", "trace.show", "Print a trace: one line per token or other event."),
            Command("stats", "trace.stats", "Print token counts, speeds, and how each stream ended."),
            Command("diff", "trace.diff", "Compare two traces stream by stream."),
            Command("cut", "trace.edit", "Write the part of a trace between two times."),
            Command("merge", "trace.edit", "Write the events of several traces in order of time."),
            Command("redact", "trace.edit", "Write a copy without prompts, headers or texts."),
            Command("convert", "trace.convert", "Write a trace as CSV, Markdown, asciicast, HAR or wire log."),
        ),
        "Traces",
    ),
    Group(
        "conformance",
        "The LMTP specification as tests, for any server and any client.",
        (
            Command("server", "conformance.server", "Test a server against each rule of the specification."),
            Command("client", "conformance.client", "Run a client against a scripted server."),
        ),
        "Traces",
    ),
    Command("audit", "audit", "Check that a server's logprobs are true.", "Traces"),
    Command("record", "trace.record", "The same as `lmtool trace record`.", hidden=True),
    Command("replay", "trace.serve", "The same as `lmtool trace serve`.", function="serve", hidden=True),
    Command("inspect", "inspect", "Watch streams, probabilities, frames and time: live, or a trace.", "Look"),
    Command("tui", "inspect", "The same as `lmtool inspect`.", function="inspect", hidden=True),
    Group(
        "bench",
        "Measure engines, servers, gateways and the inspector.",
        (
            Command("engine", "bench.engine", "Measure our engine beside others on the same weights."),
            Command("serve", "bench.serve", "Load a server: latencies, throughput, goodput."),
            Command("soak", "bench.soak", "Soak a server in faults and hostile frames; 1 if it breaks."),
            Command("gateway", "bench.gateway", "Measure the gateway beside a bare forwarder and LiteLLM."),
            Command("inspect", "bench.inspect", "Load the inspector: key delay, CPU, opening a long trace."),
        ),
        "Look",
    ),
    Command("docs", "docs", "Read the manual: one page, or the list of pages.", "Setup"),
    Command("models", "models", "List the available models: served, embedded, downloaded.", "Setup"),
    Command("doctor", "doctor", "Check what serving and chatting need; 1 if something is broken.", "Setup"),
    Group(
        "config",
        "Show effective settings and their origins.",
        (
            Command("show", "config", "Print each option's effective value and its origin."),
            Command("path", "config", "Print the settings files that are read, strongest first."),
        ),
        "Setup",
    ),
)
"""In the order of the help."""


def find(name: str) -> Command | Group | None:
    """The command or group of this name at the top of the tree, or None."""
    return next((entry for entry in TREE if entry.name == name), None)
