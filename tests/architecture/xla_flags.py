"""Look up in which releases of jaxlib XLA knows the flags that our advice names: an unknown flag ends the process.

`python -m tests.architecture.xla_flags 0.4.30 0.9.0` downloads the wheels of these releases for x86-64 Linux (about 80 MB
each), looks for the names of the flags in their libraries, and writes what it found into `xla_flags.json` next to this file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

RESULTS = Path(__file__).with_suffix(".json")
DATA = Path(__file__).parents[2] / "src" / "determinism" / "knowledge" / "data"
PLACES = ("jax", "frameworks", "settings")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_27_x86_64")
FLAG = re.compile(r"--(xla_[a-z0-9_]+)(?![a-z0-9_*])")
NAME = re.compile(rb"(?<![a-z0-9_])xla_[a-z0-9_]+(?![a-z0-9_])")


def named_flags() -> set[str]:
    """Every flag of XLA that the knowledge names."""
    texts = (path.read_text(encoding="utf-8") for place in PLACES for path in (DATA / place).glob("*.toml"))
    return {flag for text in texts for flag in FLAG.findall(text)}


def release_key(version: str) -> tuple[int, ...]:
    """The numbers of a release, as a sort key."""
    return tuple(int(part) for part in version.split("."))


def downloaded(requirement: str, folder: Path, python: str, platforms: Sequence[str]) -> Iterator[zipfile.ZipFile]:
    """The wheels of a release of a package, downloaded by pip into a folder."""
    choices = [part for platform in platforms for part in ("--platform", platform)]
    command = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", python, *choices]
    subprocess.run([sys.executable, "-m", "pip", *command, "--dest", str(folder), requirement], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            yield archive


def libraries(version: str, folder: Path) -> Iterator[bytes]:
    """The libraries in the wheel of a release."""
    for archive in downloaded(f"jaxlib=={version}", folder, "3.11", PLATFORMS):
        for name in archive.namelist():
            if ".so" in Path(name).suffixes:
                yield archive.read(name)


def known_flags(version: str, wanted: set[str]) -> list[str]:
    """The wanted flags that the libraries of a release name."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name.decode() for content in libraries(version, Path(folder)) for name in NAME.findall(content)}
    if "xla_gpu_deterministic_ops" not in found and "xla_cpu_enable_fast_math" not in found:
        raise SystemExit(
            f"The libraries of jaxlib {version} name no flag that every release has: the search does not work."
        )
    return sorted(found & wanted)


def main(versions: list[str]) -> int:
    """Look up the flags in these releases, in addition to those that were looked up before."""
    wanted = named_flags()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for version in versions:
        results[version] = known_flags(version, wanted)
        print(f"jaxlib {version}: {len(results[version])} of {len(wanted)} flags")
    ordered = dict(sorted(results.items(), key=lambda item: release_key(item[0])))
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
