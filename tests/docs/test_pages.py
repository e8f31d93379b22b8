"""README and manual tell the truth: every command runs and prints what is shown, every link leads somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.examples import BY_CI, PAGES, ROOT, Example, environments, examples, requirements
from tests.docs.reader import BIN, Reader
from tests.docs.rewrite import rewritten

if TYPE_CHECKING:
    from tests.conftest import StartServer


@pytest.fixture(scope="module")
def address(start_server: StartServer, request: pytest.FixtureRequest):
    """The URL of a server of the included model, of the lmtool whose manual is read."""
    if Path(sys.executable).parent == BIN or not serves(BIN):
        yield request.getfixturevalue("embedded")
        return
    with start_server(python=str(BIN / "python")) as process:
        process.expect("ready in")
        yield process.url


def serves(folder: Path) -> bool:
    """Whether the environment with these programs has what a server needs; else the server is this environment's."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([folder / "python", "-c", code], check=False).returncode == 0


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=name)
def test_examples_do_as_the_page_says(page: Path, address: str, tmp_path: Path) -> None:
    """Typed as written, in order, each example runs and prints the lines below it."""
    if "LMTOOL_CI_FOLDER" in os.environ and Path(sys.executable).parent == BIN:
        pytest.skip("CI types each page in an environment of that page's install lines: .ci/packages")
    reader = Reader(tmp_path, address)
    for example in examples(page):
        if not example.skip and not example.source.startswith(BY_CI):
            try:
                reader.type(example)
            except AssertionError as error:
                pytest.fail(f"{example.source}\n{error}")


def test_pages_name_what_their_examples_need() -> None:
    """A page's examples run after its own install lines: a client that a script imports is among them."""
    for page in PAGES:
        for example in examples(page):
            if example.language == "python" and not example.skip:
                modules = set(re.findall(r"^(?:import|from) (\w+)", example.source, re.MULTILINE))
                foreign = modules - sys.stdlib_module_names - {"lmtool"}
                assert foreign <= set(requirements(page)), name(page)


def test_environments_of_pages() -> None:
    """README's lmtool is installed where a page has no line of its own; each page is typed in one environment."""
    assert requirements(PAGES[0]) == ("lmtool[serve]", "openai")
    assert requirements(ROOT / "lmtool/docs/chat.md") == ("lmtool[serve]",)
    assert requirements(ROOT / "lmtool/docs/gateway.md") == ("lmtool[gateway]",)
    assert requirements(ROOT / "lmtool/docs/serving.md") == ("lmtool[serve,gguf]",)
    typed = [page for pages in environments().values() for page in pages]
    assert sorted(typed) == sorted({name(page) for page in PAGES if examples(page)})


SKIPPED = [example for page in PAGES for example in examples(page) if example.skip and example.source[:7] == "lmtool "]


@pytest.mark.parametrize("example", SKIPPED, ids=lambda e: e.source[:60])
def test_command_that_cannot_run_here_exists(example: Example) -> None:
    """What needs another machine is at least a command that lmtool has, with these options."""
    from lmtool.cli.app import build_whole

    words = shlex.split(example.source, comments=True)[1:]
    build_whole().make_context("lmtool", words, resilient_parsing=False)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file of the repository finds it, and its heading where it names one."""
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^):]+)\)", text):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if heading:
            assert heading in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub turns them into links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_outputs_are_rewritten_where_they_changed() -> None:
    """Words that differ replace those shown; lines left out stay left out, and lines that differ only in times stay."""
    example = Example("console", "lmtool chat hi", "Hello there.\n...\nstop · ttft 11 ms\n\n")
    printed = "Good day to you. " + "And more. " * 20 + "\nA line.\nAnother.\nstop · ttft 7.5 ms\n"
    assert rewritten(example, printed) == "Good day to you.\n...\nstop · ttft 11 ms\n"
    assert rewritten(Example("console", "x", "a\nb\n"), "c\nd\nloading\n") == "c\nd\n"


def test_readme_is_short() -> None:
    """The first page is at most 160 lines; all else is in the manual."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160
