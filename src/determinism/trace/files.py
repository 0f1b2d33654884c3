"""Files of a trace, readable by their owner only, either complete or absent, and not trusted when read: documents, the manifest, tensors.

Tensors are in the safetensors format, which can be read and written without a library (https://github.com/huggingface/safetensors#format).
Eight bytes hold the length of a JSON header, which lists the tensors with their types, shapes and offsets; their elements follow, row by row,
without gaps.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import resource
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determinism.errors import TraceError
from determinism.trace import schema

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
"""A file is mostly holes if less than 1 / this of it is on the disk; compressing file systems save less on a trace."""


def private(path: str, flags: int) -> int:
    """An opener for `open` that makes a new file readable by its owner only, whatever the umask is.

    Raises:
        OSError: It cannot be opened.
    """
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Create a folder that only its owner may list; parent folders get the usual permissions.

    Args:
        folder: The folder; an existing one keeps its permissions, since the user provided it.
        exist_ok: Whether it may exist already.

    Raises:
        OSError: It cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=exist_ok)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document so that a reader never sees half of it.

    Raises:
        OSError: The file cannot be written; its previous content is unharmed.
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
    """Refuse anything but a regular file, and large files that are mostly holes.

    Reading a FIFO may block forever, and a device or a file of holes fills the memory.

    Raises:
        TraceError: The file is refused.
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
    """Open a file to read it from the first byte to the last, from where `redirect_reads` redirected it, if so.

    Raises:
        OSError: It does not exist, or cannot be read.
        TraceError: It is not a regular file.
    """
    return _elsewhere[path][1]() if path in _elsewhere else io.BufferedReader(open_plain(path))


def open_plain(path: Path) -> io.FileIO:
    """Open a regular file for reading, unbuffered and without ever waiting for another process.

    Raises:
        OSError: It does not exist, or cannot be read.
        TraceError: It is not a regular file.
    """
    # Merely opening a device may have side effects, so devices are refused before that.
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
    """A file with random access for reading."""

    def __init__(self, path: Path) -> None:
        """Open it, from where `redirect_reads` redirected it, if so.

        Raises:
            OSError: It does not exist, or cannot be read.
            TraceError: It is not a regular file.
        """
        place = _elsewhere.get(path)
        self._size = None if place is None else place[0]
        self._file: Any = open_plain(path) if place is None else place[1]()
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)

    @property
    def size(self) -> int:
        """The file's current size; a redirected one does not change."""
        return os.fstat(self._file.fileno()).st_size if self._size is None else self._size

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes from an offset.

        Raises:
            OSError: They cannot be read.
        """
        if self._size is None:
            return os.pread(self._file.fileno(), size, offset)
        with self._lock:
            self._file.seek(offset)
            return bytes(self._file.read(size))


_elsewhere: dict[Path, tuple[int, Callable[[], Any]]] = {}
"""For each redirected path, the size of the file to read instead, and a function that opens it."""


def redirect_reads(path: Path, size: int, opened: Callable[[], Any]) -> None:
    """Redirect reads of a path from now on: `open_stream`, `FileParts` and `stored_bytes` use another file."""
    _elsewhere[path] = size, opened


def stored_bytes(path: Path) -> int:
    """Size of a file, or of the one that `redirect_reads` redirected it to.

    Raises:
        OSError: It does not exist.
    """
    return _elsewhere[path][0] if path in _elsewhere else path.stat().st_size


def read_plain(path: Path, *, most: int) -> bytes:
    """Read a regular file of at most so many bytes.

    Raises:
        OSError: It does not exist, or cannot be read.
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
        OSError: It does not exist, or cannot be read.
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


# The manifest.


NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)
"""Errors when the process or the machine cannot open more files."""


def create_trace(folder: Path, **facts: Any) -> None:
    """Create a new trace folder with its manifest.

    Raises:
        TraceError: The folder exists and is not empty, or cannot be created.
    """
    require_unused(folder)
    try:
        make_private_folder(folder, exist_ok=True)
        make_private_folder(folder / schema.PROCESSES_FOLDER)
        write_manifest(folder, {"run": os.urandom(8).hex(), "created": time.time(), "complete": False, **facts})
    except OSError as error:
        raise not_begun(folder, error) from None


def require_unused(folder: Path) -> None:
    """Raise if a new trace cannot have this folder: `TraceError`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TraceError(
            "output-exists", f"{folder} already exists and is not empty, so nothing was recorded. Give another folder."
        )


def not_begun(folder: Path, error: OSError) -> TraceError:
    """Empty the folder of a trace that could not be begun, so that it can be used later.

    Returns:
        The error to raise.
    """
    with suppress(OSError):
        (folder / schema.MANIFEST_FILE).unlink(missing_ok=True)
        # `shutil.rmtree` keeps a descriptor open per level, and none may be left.
        for place, _, names in os.walk(folder / schema.PROCESSES_FOLDER, topdown=False):
            for name in names:
                os.unlink(os.path.join(place, name))
            os.rmdir(place)
        (folder / schema.PROCESSES_FOLDER).rmdir()
    if error.errno in NO_MORE_FILES:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return TraceError(
            "too-many-open-files",
            f"This process cannot open more files ({error.strerror}; the limit is {limit}), so nothing was recorded "
            f"in {folder}. Raise the limit with `ulimit -n`, or close files before the recording begins.",
        )
    return TraceError("output-unwritable", f"{folder} cannot be written ({error}). Give another folder with --output.")


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Replace the manifest. For a complete run it lists the processes, so that a later loss of one is noticed.

    It keeps the name of the run, which every file of records and names also has, so that files of other runs are noticed.

    Raises:
        OSError: It cannot be written.
    """
    if facts.get("complete"):
        described = (folder / schema.PROCESSES_FOLDER).glob(f"*/{schema.PROCESS_FILE}")
        facts = {**facts, "processes": sorted(path.parent.name for path in described)}
    write_json(folder / schema.MANIFEST_FILE, {"format": schema.FORMAT, "run": run_of(folder), **facts})


def run_of(folder: Path) -> str | None:
    """The name of the run from a trace's manifest; None if there is none."""
    try:
        named = read_document(folder / schema.MANIFEST_FILE).get("run")
    except (OSError, ValueError, AttributeError):
        return None
    return named if isinstance(named, str) else None


# Files of tensors.


BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
    "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes per element, by the format's names of types."""
_METADATA = "__metadata__"
_MOST_HEADER_BYTES = 100 << 20
"""The format's own limit."""
_MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    dtype: str
    """One of `BYTES`."""
    shape: tuple[int, ...]
    elements: bytes | memoryview
    """Row by row, little-endian."""


def write_tensors(path: Path, tensors: Mapping[str, StoredTensor], *, about: Mapping[str, str]) -> None:
    """Write tensors to a file.

    Raises:
        OSError: It cannot be written.
    """
    header: dict[str, Any] = {_METADATA: dict(about)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + len(tensor.elements)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", opener=private) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(tensor.elements for tensor in tensors.values())


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a file, in the order of its header.

    Raises:
        TraceError: It is damaged, or cannot be read.
    """
    try:
        content = memoryview(read_plain(path, most=_MOST_BYTES))
        (length,) = struct.unpack("<Q", content[:8])
        if length > min(_MOST_HEADER_BYTES, len(content) - 8):
            raise ValueError(f"its header would take {length} bytes")
        header = json.loads(bytes(content[8 : 8 + length]))
        return dict(_entries(header, content[8 + length :]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise TraceError(
            "trace-damaged", f"The tensors in {path} cannot be read ({error}), so their values are not shown."
        ) from None


def _entries(header: dict[str, Any], elements: memoryview) -> Iterable[tuple[str, StoredTensor]]:
    for name, entry in header.items():
        if name == _METADATA:
            continue
        start, end = entry["data_offsets"]
        shape = tuple(int(size) for size in entry["shape"])
        if not 0 <= start <= end <= len(elements) or end - start != math.prod(shape) * BYTES[entry["dtype"]]:
            raise ValueError(f"the header gives a wrong place or size for {name!r}")
        yield name, StoredTensor(entry["dtype"], shape, elements[start:end])
