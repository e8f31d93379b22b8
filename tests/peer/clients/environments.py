"""The SDKs that are tried, each for an environment of its own: `python -m tests.peer.clients.environments FOLDER`.

Makes FOLDER/NAME for each of Python, and FOLDER/node for those of JavaScript, where there is npm.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

PYTHON = {
    "openai": ("openai==3.54.0",),
    "anthropic": ("anthropic==2.12.0",),
    "litellm": ("litellm==1.106.2", "mcp"),  # without mcp its responses fail
    "langchain": ("langchain-openai==1.7.3", "langchain-anthropic==1.7.7"),
    "instructor": ("instructor==1.17.0", "anthropic==2.12.0"),
    "pydantic_ai": ("pydantic-ai-slim[openai,anthropic]==2.68.0",),
    "openai_agents": ("openai-agents==0.24.0",),
    "llama_index": (
        "llama-index-llms-openai-like==0.8.1",
        "llama-index-llms-openai==0.8.3",
        "llama-index-llms-anthropic==0.12.3",
        "anthropic<1",  # what it sends, the later ones do not take: see docs/http.md
    ),
}
"""Requirements by the name of the client, `NAME_client.py`."""
NODE = ("openai@6.49.0", "@anthropic-ai/sdk@1.12.0", "zod@4.6.7")


def main(folder: Path) -> None:
    """Make them all."""
    for name, requirements in PYTHON.items():
        venv.create(folder / name, with_pip=True)
        pip = (str(folder / name / "bin/python"), "-m", "pip", "install", "--only-binary", ":all:")
        subprocess.run([*pip, *requirements], check=True)
    if npm := shutil.which("npm"):
        (folder / "node").mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "install", *NODE], cwd=folder / "node", check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
