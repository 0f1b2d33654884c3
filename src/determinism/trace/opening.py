"""Opens traces: recorded by one command or by several in parts, still being recorded, or in an object store.

A trace on a file system that fsspec supports is read in place. Its few small files are copied; of the files with its records only the needed
parts are fetched. Each of these is represented by an empty file in the local folder, so that code that lists the folder finds it;
nothing in a trace can make another file be fetched.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from determinism.errors import TraceError, UsageError
from determinism.trace import schema
from determinism.trace.files import make_private_folder, private, redirect_reads
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.reader import StoredTrace, read_manifest
from determinism.trace.spool import steady_bytes

# Copies what a running process has recorded so far into a folder that can be read like any other trace.


def snapshot_live_trace(folder: Path, picture: Path) -> bool:
    """Create a folder with what a process has recorded until now.

    The stream of records only grows, so it is linked; the rest is copied in an order in which nothing can be missed.
    Every later read of the snapshot sees at least the records that the first one saw.

    Args:
        folder: Folder of the process.
        picture: The folder of the snapshot; an existing one is replaced.

    Returns:
        Whether there was anything to copy: the process may not have begun yet.

    Raises:
        OSError: The snapshot cannot be written.
    """
    if not (folder / schema.PROCESS_FILE).exists():
        return False
    shutil.rmtree(picture, ignore_errors=True)
    make_private_folder(picture)
    try:
        _link(folder / schema.RECORDS_FILE, picture / schema.RECORDS_FILE)
    except FileNotFoundError:
        return False
    spool = steady_bytes(folder / schema.SPOOL_FILE)
    if spool is not None:
        with open(picture / schema.SPOOL_FILE, "wb", opener=private) as file:
            file.write(spool)
    # Names move from the pending file into the stream, so those that move in between are found in the stream.
    for name in (schema.PENDING_NAMES_FILE, schema.NAMES_FILE, schema.PROCESS_FILE):
        try:
            _copy(folder / name, picture / name)
        except FileNotFoundError:
            # The pending file is removed when the process ends.
            continue
    return True


def _link(file: Path, link: Path) -> None:
    """Hard-link a file: readers of traces refuse symbolic links."""
    try:
        os.link(file, link)
    except OSError:
        # Another file system, or one without hard links.
        _copy(file, link)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as original, open(target, "wb", opener=private) as copy:
        shutil.copyfileobj(original, copy)


# A run that was recorded in several parts, such as one on each machine of a cluster, read as one trace.
#
# RUN/parts/<name>/ a whole trace for each part
#
# Ranks are numbered across all machines, so a process with a rank keeps its key, and it does not matter which
# machine ran it. The key of any other process also names its part.

PARTS_FOLDER = "parts"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RANK = re.compile(r"[^.]+\.(rank|task)-\d+(\..+)?")


def part_folder(run: Path, name: str) -> Path:
    """Where the trace of a part belongs.

    Raises:
        UsageError: The name is not valid.
        TraceError: The run was recorded as a whole.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "part-name",
            f"{name!r} is not a valid name for a part, so nothing was recorded. Give up to 64 letters, digits, '-' "
            "and '_', for example the number of the machine: --part $SLURM_NODEID.",
        )
    if (run / schema.MANIFEST_FILE).exists():
        raise TraceError(
            "output-exists",
            f"{run} already holds a run that was recorded without --part, so nothing was recorded. Give another folder.",
        )
    return run / PARTS_FOLDER / name


def part_names(folder: Path) -> list[str]:
    """The names of the parts of a run; none if it was recorded as a whole."""
    parts = folder / PARTS_FOLDER
    names = [path.parent.name for path in parts.glob(f"*/{schema.MANIFEST_FILE}")]
    return sorted(names, key=lambda name: (len(name), name) if name.isdecimal() else (0, name))


class TraceInParts(Trace):
    """The recording of a run in several parts."""

    def __init__(self, folder: Path, parts: Sequence[Trace]) -> None:
        """Take the parts, of which there is at least one.

        Raises:
            TraceError: They were not recorded for the same number of steps.
        """
        super().__init__(folder, _manifest_of_all(folder, parts))
        self.parts = parts

    @cached_property
    def processes(self) -> list[ProcessTrace]:
        """The processes of all parts, in order of key."""
        counts = Counter(process.key for part in self.parts for process in part.processes)
        found = []
        for part in self.parts:
            renamed = {
                process.key: process.key
                if _RANK.fullmatch(process.key) and counts[process.key] == 1
                else f"{part.folder.name}/{process.key}"
                for process in part.processes
            }
            for process in part.processes:
                process.key = renamed[process.key]
                part_of = process.description.get("part_of")
                if part_of is not None:
                    process.description["part_of"] = renamed.get(part_of, part_of)
            found += part.processes
        return sorted(found, key=lambda process: process.key)

    @cached_property
    def missing_processes(self) -> list[str]:
        """Processes that the manifest of a part lists but that the part no longer has."""
        return [f"{part.folder.name}/{key}" for part in self.parts for key in part.missing_processes]


def open_parts(folder: Path) -> TraceInParts:
    """Open a run that was recorded in parts.

    Raises:
        TraceError: A part is foreign, damaged, or written by a newer version, or the parts do not belong together.
    """
    places = [folder / PARTS_FOLDER / name for name in part_names(folder)]
    return TraceInParts(folder, [StoredTrace(place, read_manifest(place)) for place in places])


def _manifest_of_all(folder: Path, parts: Sequence[Trace]) -> dict[str, Any]:
    """Combine the manifests of all parts: the run succeeded if each part did, and took as long as the slowest."""
    manifests = [part.manifest for part in parts]
    asked = {manifest.get("steps") for manifest in manifests}
    if len(asked) > 1:
        texts = ["all steps" if steps is None else f"--steps {steps}" for steps in sorted(asked, key=lambda s: s or 0)]
        raise TraceError(
            "steps-differ",
            f"The parts of {folder} were recorded for different numbers of steps ({', '.join(texts)}), so they do not "
            "belong to one run. Record all parts with the same --steps.",
        )
    statuses = [manifest.get("exit_status") for manifest in manifests]
    return {
        "command": manifests[0].get("command", []),
        "steps": asked.pop(),
        "complete": all(manifest.get("complete") for manifest in manifests),
        "exit_status": None if None in statuses else next((status for status in statuses if status), 0),
        "stopped_by": next((by for manifest in manifests if (by := manifest.get("stopped_by"))), None),
        "seconds": max(float(manifest.get("seconds") or 0.0) for manifest in manifests),
        "blind_spots": [spot for manifest in manifests for spot in manifest.get("blind_spots") or []],
    }


def open_trace(folder: Path) -> Trace:
    """Open a trace.

    Raises:
        TraceError: There is none, or it is foreign, damaged, or written by a newer version, or its parts do not belong
            together.
    """
    if not folder.is_dir():
        found = "is a file, not a folder" if folder.exists() else "does not exist"
        raise TraceError("trace-missing", f"{folder} {found}. Give the folder that `determinism record -o` wrote.")
    if part_names(folder):
        return open_parts(folder)
    if not (folder / schema.MANIFEST_FILE).exists():
        raise TraceError(
            "trace-foreign",
            f"{folder} has no {schema.MANIFEST_FILE}, so it is not a trace.{_traces_below(folder)}",
        )
    return StoredTrace(folder, read_manifest(folder))


def _traces_below(folder: Path) -> str:
    below = sorted(str(path.parent) for path in folder.glob(f"*/{schema.MANIFEST_FILE}"))
    if below:
        return f" It contains traces, though: give {' or '.join(below[:2])}."
    return " Give the folder that `determinism record -o` wrote."


# Traces elsewhere, given by a URL.


_LEFT_THERE = (schema.RECORDS_FILE, schema.EARLIER_RECORDS, schema.VALUES_FILE)
"""Read in parts, where they are."""
_NOT_READ = (schema.CAPTURED_INPUTS_FILE, schema.CAPTURED_OUTPUTS_FILE)
"""Files that further runs of a check leave for each other."""
_PART = 1 << 20

_folders: dict[str, Path] = {}
"""Local folder of each URL that was opened."""
_urls: dict[Path, str] = {}


def is_remote(given: str | os.PathLike[str]) -> bool:
    """Whether a trace is given by a URL, such as `s3://bucket/run`."""
    return "://" in os.fspath(given)


def trace_folder(given: str | os.PathLike[str]) -> Path:
    """The folder of a trace; for a URL, a local one whose records are fetched as they are read.

    Args:
        given: A folder, or a URL that fsspec supports, such as `s3://bucket/run`, `gs://bucket/run` or `sftp://host/run`.

    Raises:
        UsageError: fsspec, or what it needs for this kind of URL, is not installed.
        TraceError: There is nothing, or it cannot be reached.
    """
    url = os.fspath(given)
    if not is_remote(url):
        return Path(url)
    url = url.rstrip("/")
    if url not in _folders:
        _folders[url] = _opened(url)
        _urls[_folders[url]] = url
    return _folders[url]


def name_of(folder: Path) -> str:
    """A folder's name as the user gave it: its URL, or its path."""
    return url_of(folder) or str(folder)


def url_of(folder: Path) -> str | None:
    """The URL of a folder that `trace_folder` returned, or of one within it; None for any other."""
    for place in (folder, *folder.parents):
        if place in _urls:
            return "/".join((_urls[place], *folder.relative_to(place).parts))
    return None


def with_urls(text: str) -> str:
    """Replace the local folders in a message by the URLs that the user gave."""
    for folder, url in _urls.items():
        text = text.replace(str(folder), url)
    return text


def _opened(url: str) -> Path:
    files = _file_system(url)
    folder = Path(tempfile.mkdtemp(prefix="determinism-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        files.copy_to(folder)
    except Exception as error:  # Each store raises errors of its own.
        if isinstance(error, FileNotFoundError):
            raise TraceError(
                "trace-missing", f"There is nothing at {url}. Give the address of a trace's folder."
            ) from None
        raise TraceError(
            "trace-unreachable",
            f"{url} cannot be read ({type(error).__name__}: {str(error)[:200]}), so nothing was compared. Check the "
            "address and the credentials.",
        ) from None
    return folder


def _file_system(url: str) -> _Files:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError(
            "fsspec-missing",
            f"{url} is read with fsspec, which is not installed here, so nothing was compared. Install with: pip install 'determinism[remote]'",
        ) from None
    try:
        return _Files(url, *url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise UsageError(
            "fsspec-missing",
            f"fsspec cannot open {url} here ({str(error)[:200]}), so nothing was compared. Install the package that "
            "it names, or check the address.",
        ) from None


class _Files:
    """The files below a URL."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        self._url = url
        self._system = system
        self._root = root.rstrip("/")

    def copy_to(self, folder: Path) -> None:
        """Copy the small files, and redirect reads of the others.

        Raises:
            Exception: Whatever the file system raises; FileNotFoundError if there is nothing.
        """
        found = self._system.find(self._root, detail=True)
        if not found:
            raise FileNotFoundError(self._root)
        for name, facts in found.items():
            relative = PurePosixPath(str(name)[len(self._root) :].lstrip("/"))
            if not str(name).startswith(f"{self._root}/") or ".." in relative.parts or relative.name in _NOT_READ:
                continue
            path = folder.joinpath(*relative.parts)
            make_private_folder(path.parent, exist_ok=True)
            if any(relative.match(pattern) for pattern in _LEFT_THERE):
                os.close(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                redirect_reads(path, int(facts["size"]), self._opener(name))
            else:
                self._copy(name, path)

    def _opener(self, name: str) -> Callable[[], Any]:
        return lambda: self._system.open(name, "rb")

    def _copy(self, name: str, path: Path) -> None:
        with self._system.open(name, "rb") as source, open(path, "xb", opener=private) as target:
            while part := source.read(_PART):
                target.write(part)
