"""`lmtool cache why`: explains which prompts of a trace missed the prefix cache."""

from __future__ import annotations

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import TraceFile, warn_if_incomplete
from lmtool.settings.option import option


def why(
    common: Common,
    file: TraceFile,
    as_json: bool = option(False, "Print one JSON object.", flag="--json"),
) -> None:
    """Explain why prompts were computed again: the prefix shared with an earlier prompt, and the first difference.

    Counts tokens if the trace has them, else characters, and shows how much the server reports as cached.
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
