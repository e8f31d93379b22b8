"""README and manual tell the truth: every command runs and prints what is shown, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.examples import BY_CI, PAGES, ROOT, Example, examples
from tests.docs.reader import BIN, Reader
from tests.docs.rewrite import rewritten

if TYPE_CHECKING:
    from tests.conftest import StartServer


@pytest.fixture(scope="module")
def address(start_server: StartServer, request: pytest.FixtureRequest):
    """The URL of a server of the included model, of the lmtool whose manual is read."""
    import sys

    if Path(sys.executable).parent == BIN:
        yield request.getfixturevalue("embedded")
        return
    with start_server(python=str(BIN / "python")) as process:
        process.expect("ready in")
        yield process.url


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=name)
def test_examples_do_as_the_page_says(page: Path, address: str, tmp_path: Path) -> None:
    """Typed as written, in order, each example runs and prints the lines below it."""
    reader = Reader(tmp_path, address)
    for example in examples(page):
        if not example.skip and not example.source.startswith(BY_CI):
            try:
                reader.type(example)
            except AssertionError as error:
                pytest.fail(f"{example.source}\n{error}")


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
