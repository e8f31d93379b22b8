"""Checks what sdist and wheel contain: `contents.py FILE...`; `--extras WHEEL` lists the extras for users."""

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

FOR_DEVELOPERS = {"dev"}
"""Extras of a checkout: `.ci/run` has installed them already."""
NOT_IN_WHEEL = ("tests/",)


def names(package: Path) -> set[str]:
    """Paths in a wheel or an sdist, below its top folder."""
    if package.suffix == ".whl":
        return set(zipfile.ZipFile(package).namelist())
    with tarfile.open(package) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def missing(package: Path) -> list[str]:
    """What should be there and is not, or the other way round."""
    there = names(package)
    tracked = subprocess.run(["git", "ls-files", "lmtool"], capture_output=True, text=True, check=True).stdout.split()
    wheel = package.suffix == ".whl"
    expected = {name for name in tracked if not (wheel and name.startswith(NOT_IN_WHEEL))}
    surplus = {name for name in there if wheel and name.startswith(NOT_IN_WHEEL)}
    return [f"{package.name}: no {name}" for name in sorted(expected - there)] + [
        f"{package.name}: {name} should not be in it" for name in sorted(surplus)
    ]


def extras(wheel: Path) -> list[str]:
    """The extras that a wheel offers, but for developers'."""
    archive = zipfile.ZipFile(wheel)
    metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    found = email.message_from_bytes(archive.read(metadata)).get_all("Provides-Extra") or []
    return [name for name in found if name not in FOR_DEVELOPERS]


if __name__ == "__main__":
    if sys.argv[1] == "--extras":
        print(*extras(Path(sys.argv[2])))
    else:
        files = [Path(name) for name in sys.argv[1:] if name.endswith((".whl", ".tar.gz"))]
        sys.exit("\n".join(line for file in files for line in missing(file)) or 0)
