"""Files of a trace: readable by their owner only, either whole or absent, and read as what anybody may have put there."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determinism.errors import TraceError

MOST_DOCUMENT_BYTES = 64 << 20
"""The largest JSON document that is read."""
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_LARGE = 1 << 30
_MOST_HOLES = 64
"""A file of which less than this share is on the disk is mostly holes; compressing file systems save less on a trace."""


def private(path: str, flags: int) -> int:
    """An opener for `open`: a new file can be read by its owner only, whatever the umask is.

    Raises:
        OSError: It cannot be opened.
    """
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Make a folder that its owner alone may list; folders around it are made as any other program makes them.

    Args:
        folder: Which; one that is there already keeps its permissions, since the user gave it.
        exist_ok: Whether it may be there already.

    Raises:
        OSError: It cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=exist_ok)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document so that a reader never sees half of it.

    Raises:
        OSError: The file cannot be written; what stood there before is unharmed.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", encoding="utf-8", opener=private) as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.flush()
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def require_plain(path: Path, status: os.stat_result) -> None:
    """Refuse what is not a regular file, or is a large one that is mostly holes.

    Reading a FIFO waits forever, and a device or a file of holes fills the memory.

    Raises:
        TraceError: It is one of these.
    """
    kind = None if stat.S_ISREG(status.st_mode) else _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
    allocated = status.st_blocks * 512
    if kind is None and status.st_size >= _LARGE and allocated < status.st_size // _MOST_HOLES:
        kind = f"a file of {status.st_size:,} bytes of which only {allocated:,} are on the disk"
    if kind is not None:
        raise TraceError(
            "trace-damaged",
            f"{path} is {kind}, which no trace contains. The trace was changed or damaged, and was not read. Remove "
            "it, or record the run again.",
        )


def open_stream(path: Path) -> Any:
    """Open a file to read it from the first byte to the last, also where `read_elsewhere` says that it is somewhere else.

    Raises:
        OSError: It is not there, or cannot be read.
        TraceError: It is not a regular file.
    """
    return _elsewhere[path][1]() if path in _elsewhere else io.BufferedReader(open_plain(path))


def open_plain(path: Path) -> io.FileIO:
    """Open a regular file for reading, without a buffer and without ever waiting for another process.

    Raises:
        OSError: It is not there, or cannot be read.
        TraceError: It is not a regular file.
    """
    # Opening alone may do something to a device, so those are refused before.
    require_plain(path, os.lstat(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            # It was replaced meanwhile.
            require_plain(path, os.lstat(path))
        raise
    try:
        require_plain(path, os.fstat(descriptor))
        return io.FileIO(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


class FileParts:
    """A file that is read in parts, from any place in it."""

    def __init__(self, path: Path) -> None:
        """Open it, also where `read_elsewhere` says that it is somewhere else.

        Raises:
            OSError: It is not there, or cannot be read.
            TraceError: It is not a regular file.
        """
        place = _elsewhere.get(path)
        self._size = None if place is None else place[0]
        self._file: Any = open_plain(path) if place is None else place[1]()
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)

    @property
    def size(self) -> int:
        """How large the file is now; one that is elsewhere stays as it was."""
        return os.fstat(self._file.fileno()).st_size if self._size is None else self._size

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to so many bytes from a place on.

        Raises:
            OSError: They cannot be read.
        """
        if self._size is None:
            return os.pread(self._file.fileno(), size, offset)
        with self._lock:
            self._file.seek(offset)
            return bytes(self._file.read(size))


_elsewhere: dict[Path, tuple[int, Callable[[], Any]]] = {}
"""By path: how large the file is that stands for, and what opens it for reading."""


def read_elsewhere(path: Path, size: int, opened: Callable[[], Any]) -> None:
    """Read a file somewhere else from now on, where it is read in parts or from the first byte to the last.

    Args:
        path: That stands for it here.
        size: How large it is.
        opened: Opens it; what it gives can be read and positioned.
    """
    _elsewhere[path] = size, opened


def stored_bytes(path: Path) -> int:
    """How large a file is, also where `read_elsewhere` says that it is somewhere else.

    Raises:
        OSError: It is not there.
    """
    return _elsewhere[path][0] if path in _elsewhere else path.stat().st_size


def read_plain(path: Path, *, most: int) -> bytes:
    """Read a regular file.

    Args:
        path: The file.
        most: More bytes than this are not read.

    Raises:
        OSError: It is not there, or cannot be read.
        TraceError: It is not a regular file.
    """
    with open_plain(path) as file:
        left = min(os.fstat(file.fileno()).st_size, most)
        parts = []
        while left and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_document(path: Path) -> Any:
    """Read a JSON document.

    Raises:
        OSError: It is not there, or cannot be read.
        ValueError: It is not JSON.
        TraceError: It is not a regular file, or larger than any that a run writes.
    """
    content = read_plain(path, most=MOST_DOCUMENT_BYTES + 1)
    if len(content) > MOST_DOCUMENT_BYTES:
        raise TraceError(
            "trace-damaged",
            f"{path} is a JSON document of more than {MOST_DOCUMENT_BYTES:,} bytes, larger than any that a run "
            "writes. The trace was changed or damaged, and was not read. Remove it, or record the run again.",
        )
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
