"""Traces in an object store or on another file system that fsspec knows, read where they are.

A trace has a few small files, which are copied, and those with its records, of which only the parts that are needed are fetched. For each of
these an empty file stands in the local folder, so that whatever reads a folder finds it; nothing in a trace can make another file be fetched.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from determinism.errors import TraceError, UsageError
from determinism.trace import schema
from determinism.trace.files import make_private_folder, private, read_elsewhere

_LEFT_THERE = (schema.RECORDS_FILE, schema.EARLIER_RECORDS, schema.VALUES_FILE)
"""Read in parts, where they are."""
_NOT_READ = (schema.CAPTURED_INPUTS_FILE, schema.CAPTURED_OUTPUTS_FILE)
"""What further runs of a check left for each other."""
_PART = 1 << 20

_folders: dict[str, Path] = {}
"""By URL, the local folder of what was opened."""
_urls: dict[Path, str] = {}


def is_remote(given: str | os.PathLike[str]) -> bool:
    """Whether a trace is given by a URL, such as `s3://bucket/run`."""
    return "://" in os.fspath(given)


def trace_folder(given: str | os.PathLike[str]) -> Path:
    """The folder of a trace; that of a URL is a local one in which records are fetched as they are read.

    Args:
        given: A folder, or a URL of one that fsspec knows, such as `s3://bucket/run`, `gs://bucket/run` or `sftp://host/run`.

    Raises:
        UsageError: fsspec, or what it needs for this sort of URL, is not installed.
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
    """What a folder is called by who gave it: its URL, or its path."""
    return url_of(folder) or str(folder)


def url_of(folder: Path) -> str | None:
    """The URL of a folder that `trace_folder` gave, or of one within it; None for any other."""
    for place in (folder, *folder.parents):
        if place in _urls:
            return "/".join((_urls[place], *folder.relative_to(place).parts))
    return None


def with_urls(text: str) -> str:
    """A message in which the local folders of what was opened have the URLs that were given."""
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
        """Copy the small files, and say where the others are read.

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
                read_elsewhere(path, int(facts["size"]), self._opener(name))
            else:
                self._copy(name, path)

    def _opener(self, name: str) -> Callable[[], Any]:
        return lambda: self._system.open(name, "rb")

    def _copy(self, name: str, path: Path) -> None:
        with self._system.open(name, "rb") as source, open(path, "xb", opener=private) as target:
            while part := source.read(_PART):
                target.write(part)
