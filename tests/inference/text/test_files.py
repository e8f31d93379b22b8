"""Where a tokenizer's files are found: folder, hub cache, hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.core.errors import FileError, ModelLoadError
from lmtool.inference.text.files import locate, read_text


def test_folder(tmp_path: Path) -> None:
    """A folder is used as it is, its last part is the name; a path to a tokenizer.json means its folder."""
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    assert locate(f"{folder}/") == ("some-model", folder)
    assert locate(str(folder / "tokenizer.json")) == ("some-model", folder)


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./nothing", "~/nothing-here", "~nobody-known/a", "a/b/c", "", "/" + "a" * 300]
)
def test_no_such_folder(name: str) -> None:
    """What can only be a folder, and is none, is not looked for on the hub."""
    with pytest.raises(ModelLoadError, match="no such folder"):
        locate(name)


def test_unreadable_file(tmp_path: Path) -> None:
    """A file that is missing or no UTF-8 is an error that names it."""
    (tmp_path / "a").write_bytes(b"\xff")
    for name in ("a", "b"):
        with pytest.raises(FileError, match=str(tmp_path / name)):
            read_text(tmp_path / name)


LOCATE = """
import sys
from lmtool.core.errors import LmtoolError
from lmtool.inference.text.files import locate
for name in sys.argv[1:]:
    try:
        print(*locate(name))
    except LmtoolError as error:
        print(error.code, error.message)
print("huggingface_hub" in sys.modules)
"""


def located(home: Path, *names: str, script: str = LOCATE, **env: str) -> list[str]:
    """Return what `locate` says of each name in a process of its own, and whether it loaded huggingface_hub."""
    result = subprocess.run(
        [sys.executable, "-c", script, *names],
        env={**os.environ, "HF_HOME": str(home), **env},
        cwd=Path(__file__).parent.parent.parent.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return result.stdout.splitlines()


def cache(home: Path, *files: str) -> Path:
    """Lay out the hub's cache for the model `someone/small`; return the folder of its snapshot."""
    repository = home / "hub/models--someone--small"
    snapshot = repository / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    for file in files:
        (snapshot / file).write_text("{}")
    return snapshot


def test_cache_is_enough(tmp_path: Path) -> None:
    """Files in the hub's cache are used without the network and without the hub's library."""
    snapshot = cache(tmp_path, "tokenizer.json", "tokenizer_config.json")
    assert located(tmp_path, "someone/small") == [f"someone/small {snapshot}", "False"]


def test_a_revision_in_the_cache(tmp_path: Path) -> None:
    """A branch or a commit that the cache has is used, and not the main branch."""
    snapshot = cache(tmp_path, "tokenizer.json", "tokenizer_config.json")
    other = snapshot.parent / "def"
    snapshot.rename(other)
    (snapshot.parent.parent / "refs/next").write_text("def")
    script = LOCATE.replace("locate(name)", "locate('someone/small', name)")
    found = located(tmp_path, "next", "def", script=script)
    assert found == [f"someone/small {other}"] * 2 + ["False"]


def test_offline(tmp_path: Path) -> None:
    """Offline, what the cache has must do; a model that is not there is an error that says so."""
    snapshot = cache(tmp_path, "tokenizer.json")
    found, unknown, impossible, _ = located(tmp_path, "someone/small", "someone/other", "some one", HF_HUB_OFFLINE="1")
    assert found == f"someone/small {snapshot}"
    assert unknown.startswith("model_load 'someone/other' is no folder here, it is not in the local cache")
    assert impossible.startswith("model_load 'some one' is neither a folder here nor a possible name")


def test_hub_out_of_reach(tmp_path: Path) -> None:
    """So it is when nothing answers where the hub should be."""
    snapshot = cache(tmp_path, "tokenizer.json")
    found, unknown, _ = located(
        tmp_path, "someone/small", "someone/other", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0"
    )
    assert found == f"someone/small {snapshot}"
    assert "cannot be reached" in unknown
