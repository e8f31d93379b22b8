"""Every command's place, name and sentence; what it takes to run one is only imported when that one is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the first line of its help is repeated here, so that the list of commands needs no import."""

    name: str
    module: str
    """Below `lmtool.cli`."""
    summary: str
    panel: str = ""
    """Heading in the help."""
    function: str = ""
    """The function in `module`; its name is the command's where this is empty."""
    hidden: bool = False

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module = importlib.import_module(f"lmtool.cli.{self.module}")
        function: Callable[..., Any] = getattr(module, self.function or self.name)
        return function


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under one word."""

    name: str
    summary: str
    commands: tuple[Command, ...]
    panel: str = ""


TREE: tuple[Command | Group, ...] = (
    Command("serve", "serve", "Serve a model over LMTP.", "Run"),
    Command("balance", "balance", "Offer many servers of one model at one address.", "Run"),
    Command("chat", "chat", "Talk to a model: one answer, or a conversation.", "Talk"),
    Command("score", "score", "Logprob, probability and perplexity of texts, given a prompt.", "Talk"),
    Command("info", "info", "Ask a server what it serves and how it speaks.", "Talk"),
    Command("tokenize", "tokenize", "Show how a text is cut into tokens: ids, texts, bytes.", "Talk"),
    Group(
        "trace",
        "Recorded conversations: record, replay, compare, edit.",
        (
            Command("record", "trace.record", "Record what clients and a server say, standing between."),
            Command("serve", "trace.serve", "Answer requests as recorded: a mock server."),
            Command("drive", "trace.drive", "Send a recording to a server; compare what comes."),
            Command("verify", "trace.verify", "Check recordings: answered to our client, sent to a server."),
            Command("show", "trace.show", "Print a trace: one line for each token and each other event."),
            Command("stats", "trace.stats", "Print how many tokens, how fast, and how each stream ended."),
            Command("diff", "trace.diff", "Compare two traces stream by stream."),
            Command("cut", "trace.cut", "Write the part of a trace between two times."),
            Command("merge", "trace.merge", "Write the events of several traces in order of time."),
            Command("redact", "trace.redact", "Write a copy without prompts, headers or texts."),
            Command("convert", "trace.convert", "Write a trace as CSV, Markdown, asciicast, HAR or wire log."),
        ),
        "Traces",
    ),
    Group(
        "conformance",
        "The LMTP specification as tests, for any server and any client.",
        (
            Command("server", "conformance.server", "Hold a server to each rule of the specification."),
            Command("client", "conformance.client", "Run a client against a scripted server."),
        ),
        "Traces",
    ),
    Command("record", "trace.record", "The same as `lmtool trace record`.", hidden=True),
    Command("replay", "trace.serve", "The same as `lmtool trace serve`.", function="serve", hidden=True),
    Command("inspect", "inspect", "Watch streams, probabilities, frames and time: live, or a trace.", "Look"),
    Command("tui", "inspect", "The same as `lmtool inspect`.", function="inspect", hidden=True),
    Group(
        "bench",
        "Measure engines, servers and the inspector.",
        (
            Command("engine", "bench.engine", "Measure our engine beside its peers on the same weights."),
            Command("serve", "bench.serve", "Load a server: latencies, throughput, goodput."),
            Command("inspect", "bench.inspect", "Load the inspector: key delay, CPU, opening a long trace."),
        ),
        "Look",
    ),
    Command("models", "models", "List the models at hand: served, embedded, downloaded.", "Setup"),
    Command("doctor", "doctor", "Check what serving and talking need; 1 if something is broken.", "Setup"),
    Group(
        "config",
        "Show effective settings, and where each came from.",
        (
            Command("show", "config", "Print each option's effective value and its origin."),
            Command("path", "config", "Print the settings files that are read, strongest first."),
        ),
        "Setup",
    ),
)
"""In the order of the help."""


def find(name: str) -> Command | Group | None:
    """Return the command or group of this name at the top of the tree."""
    return next((entry for entry in TREE if entry.name == name), None)
