"""Gives every run of a program the same standard input."""

from __future__ import annotations

import os
import select
import stat
import tempfile
import threading
from contextlib import suppress
from typing import BinaryIO, Self

from determinism.errors import LaunchError

_POLL_MILLISECONDS = 50
_CHUNK_BYTES = 65536


class StandardInput:
    """What the program reads, kept for the runs after the first.

    A terminal or a device is inherited as it is, a file is read from the same offset by every run, and what comes
    through a pipe is kept as far as the program took it off.
    """

    def __init__(self, descriptor: int = 0) -> None:
        """Look at what stands on a descriptor; nothing is read yet.

        Raises:
            LaunchError: What comes through a pipe cannot be kept.
        """
        self._descriptor = descriptor
        self._closed = False
        self._offset: int | None = None
        self._spool: BinaryIO | None = None
        self._ended = False
        self._lost: OSError | None = None
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            self._closed = True
            return
        if stat.S_ISREG(mode):
            self._offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            try:
                # It has no name on the disk: nothing stays behind, however this process ends.
                self._spool = tempfile.TemporaryFile()  # noqa: SIM115
            except OSError as error:
                raise _not_kept(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._spool is not None:
            with suppress(OSError):
                # What a full disk did not take is tried again here; it is not needed any more.
                self._spool.close()

    def for_run(self) -> InputOfRun:
        """The input of the next run, from the beginning.

        Raises:
            LaunchError: The input of an earlier run could not be kept.
        """
        if self._spool is not None:
            if self._lost is not None:
                raise _not_kept(self._lost)
            return InputOfRun(self._descriptor, self)
        if self._offset is not None:
            os.lseek(self._descriptor, self._offset, os.SEEK_SET)
        return InputOfRun(None if self._closed else self._descriptor, None)

    def read(self, position: int) -> bytes | None:
        """What follows `position`: b"" at the end of the input, None if nothing has arrived in a while."""
        assert self._spool is not None
        kept = os.pread(self._spool.fileno(), _CHUNK_BYTES, position) if self._lost is None else b""
        if kept or self._ended:
            return kept
        if not _ready(self._descriptor, select.POLLIN):
            return None
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        self._ended = not data
        try:
            self._spool.write(data)
            self._spool.flush()
        except OSError as error:
            self._lost = error
        return data


class InputOfRun:
    """The standard input of one run; a context that ends with the run."""

    def __init__(self, inherited: int | None, source: StandardInput | None) -> None:
        self.descriptor = inherited
        self._source = source
        self._read_end = self._write_end = -1
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        if self._source is not None:
            self._read_end, self._write_end = os.pipe()
            self.descriptor = self._read_end
            os.set_blocking(self._write_end, False)
            self._thread = threading.Thread(target=self._feed, args=(self._source,), name="standard input", daemon=True)
        return self

    def started(self) -> None:
        """The program has the descriptor now."""
        if self._source is not None:
            os.close(self._read_end)
            self._thread.start()

    def __exit__(self, *exception: object) -> None:
        if self._source is None:
            return
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            os.close(self._read_end)
            os.close(self._write_end)

    def _feed(self, source: StandardInput) -> None:
        position = 0
        try:
            while not self._stop.is_set():
                data = source.read(position)
                if data == b"":
                    break
                if data is not None:
                    position += len(data)
                    self._write(data)
        except OSError:
            # The program closed its end, or the pipe broke: either way nothing more arrives.
            pass
        finally:
            os.close(self._write_end)

    def _write(self, data: bytes) -> None:
        while data and not self._stop.is_set():
            if _ready(self._write_end, select.POLLOUT):
                try:
                    data = data[os.write(self._write_end, data) :]
                except BlockingIOError:
                    continue


def _not_kept(error: OSError) -> LaunchError:
    return LaunchError(
        "input-not-kept",
        f"What the program reads from the pipe cannot be kept ({error}), so later runs could not be fed with it. "
        f"Make room for temporary files, or give the input as a file.",
    )


def _ready(descriptor: int, event: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(_POLL_MILLISECONDS))
