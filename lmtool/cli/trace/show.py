"""`lmtool trace show`: a trace as text."""

from __future__ import annotations

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import TraceFile, warn_if_incomplete
from lmtool.settings.option import option


def show(
    common: Common,
    file: TraceFile,
    connection: int | None = option(None, "Only this connection.", short="-c", metavar="N"),
    filter: str = option("", 'Only these: sid:3 p<.1 rank>3 gap>50ms err "text" /re/ | ! ( ).', metavar="EXPR"),  # noqa: A002 - names the setting
    jsonl: bool = option(False, "One JSON object a token or other event."),
) -> None:
    """Print a trace: one line for each token and each other event."""
    import msgspec

    from lmtool.core.errors import UsageError
    from lmtool.terminal.tui.measures import load_selection
    from lmtool.trace.answers import Answers
    from lmtool.trace.description import describe, objects
    from lmtool.trace.filter import parse
    from lmtool.trace.reader import TraceReader
    from lmtool.trace.stream_events import stream_of

    if jsonl and filter:
        raise UsageError("--filter selects lines for people, --jsonl prints every event", "filter the objects with jq")
    out = common.output()
    chosen = parse(filter) if filter else None
    reader = TraceReader(file)
    header = reader.header
    if not jsonl:
        out.line(" · ".join(str(part) for part in (file.name, header.at, header.by, header.title) if part))
    answers, printed = Answers(stream_of), False
    with load_selection(file, chosen) as selection:
        for event in reader:
            shown = connection is None or event.connection in (0, connection)
            if jsonl:
                for one in objects(event) if shown else ():
                    out.line(msgspec.json.encode(one).decode())
                continue
            for line in describe(event, answers, None if selection is None else selection.passes):
                if shown:
                    printed = True
                    out.line(line)
    if chosen is not None and not printed:
        out.note_nothing_passed(chosen.source)
    warn_if_incomplete(out, reader)
