"""`lmtool cache why`: what ends the beginnings that the prompts of a trace have in common."""

from __future__ import annotations

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import TraceFile, warn_if_incomplete
from lmtool.settings.option import option


def why(
    common: Common,
    file: TraceFile,
    as_json: bool = option(False, "One JSON object.", flag="--json"),
) -> None:
    """Print why prompts were computed again: what each has in common with an earlier one, and what differs first.

    In tokens where the trace has them, else in characters; beside it what the server says it had cached.
    """
    import json

    from lmtool.trace.prefix_sharing import as_json as as_object
    from lmtool.trace.prefix_sharing import sentences, shared_prefixes, summary
    from lmtool.trace.reader import TraceReader

    out, reader = common.output(), TraceReader(file)
    found, vocabulary = shared_prefixes(event for _, event in reader.with_offsets(whole=True))
    sums = summary(found)
    if as_json:
        requests = [as_object(one, vocabulary.get) for one in found]
        out.line(json.dumps({"file": str(file), **sums, "listed": requests}))
    else:
        for one in found:
            first, *more = sentences(one, vocabulary.get)
            out.line(f"{one.label:<6} {first}")
            for line in more:
                out.line(f"       {line}")
        out.line(
            f"{sums['requests']} requests · {sums['prompt_tokens']:,} tokens read · {sums['cached_tokens']:,} cached · "
            f"{sums['computed_again']:,} computed again behind a difference"
        )
    warn_if_incomplete(out, reader)
