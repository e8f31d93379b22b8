"""Run by LMQL's Python: real queries against a server. Arguments: HOST:PORT, model folder. Writes results as JSON."""

import asyncio
import json
import sys

import lmql

QUERIES = {
    "where": """
argmax(max_len=64)
    "Say hello:[GREETING] end"
where len(TOKENS(GREETING)) < 10
""",
    "choice": """
argmax(max_len=64)
    "The answer is [X]"
where X in ["yes", "no"]
""",
    "stops at": """
argmax(max_len=64)
    "one two [X]"
where STOPS_BEFORE(X, "a") and len(TOKENS(X)) < 12
""",
    "distribution": """
argmax(max_len=64)
    "Say hello:[G] The answer is [X]"
where len(TOKENS(G)) < 4
distribution
    X in ["yes", "no", "three four"]
""",
    "beam": """
beam(n=2, max_len=48)
    "one two[X]"
where len(TOKENS(X)) < 6
""",
    "beam of three": """
beam(n=3, max_len=48)
    "The answer[X]"
where len(TOKENS(X)) < 5
""",
}


async def main(endpoint, folder):
    model = lmql.model(folder, endpoint=endpoint, tokenizer=folder)
    found = {}
    for name, query in QUERIES.items():
        results = await lmql.run(query, model=model, output_writer=lmql.headless)
        results = results if isinstance(results, list) else [results]
        found[name] = [{"prompt": result.prompt, "variables": result.variables} for result in results]
    sys.stdout.write(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
