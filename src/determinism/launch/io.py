"""Input and output of the programs that are run: the same standard input for each run, logs, folders."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import select
import shutil
import stat
import tempfile
import termios
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

from determinism.errors import LaunchError, TraceError
from determinism.trace.files import make_private_folder

# The folder that the traces and logs of a check go to.

DEFAULT_FOLDER = Path(".determinism")
_IGNORE = ".gitignore"


class OutputFolder:
    """What one check makes: per run a trace, the log of its output, and the log of the command that prepared it."""

    def __init__(self, output: Path | None) -> None:
        """Make the folder.

        Args:
            output: Where; None for a new one below `.determinism`.

        Raises:
            TraceError: It is already there, or cannot be made.
        """
        self._is_default = output is None
        self.path = _new_folder(output)

    def trace(self, name: str) -> Path:
        """The trace of a run."""
        return self.path / name

    def log(self, name: str) -> Path:
        """What a run printed."""
        return self.path / f"{name}.log"

    def preparation_log(self, name: str) -> Path:
        """What the command before a run printed."""
        return self.path / f"{name}.before.log"

    def discard(self, name: str, *, with_log: bool = True) -> None:
        """Remove what belongs to a run, and nothing else: the program may have put something there as well."""
        shutil.rmtree(self.trace(name), ignore_errors=True)
        self.preparation_log(name).unlink(missing_ok=True)
        if with_log:
            self.log(name).unlink(missing_ok=True)

    def remove_if_empty(self) -> None:
        """Remove the folder if it holds nothing; of the default one also the folder around it."""
        for folder in [self.path, self.path.parent] if self._is_default else [self.path]:
            try:
                if self._is_default and [file.name for file in folder.iterdir()] == [_IGNORE]:
                    (folder / _IGNORE).unlink()
                folder.rmdir()
            except OSError:
                # Traces of other checks are still there.
                return


def _new_folder(output: Path | None) -> Path:
    folder = output if output is not None else DEFAULT_FOLDER / time.strftime("%Y-%m-%d-%H%M%S")
    folder = folder.absolute()
    if output is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TraceError(
            "output-exists",
            f"{output} already exists and is not empty, so nothing was run. Give another folder with --output.",
        )
    try:
        if output is not None:
            make_private_folder(folder, exist_ok=True)
            return folder
        make_private_folder(folder.parent, exist_ok=True)
        _ignore(folder.parent)
        for unique in itertools.chain([folder], (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))):
            try:
                unique.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return unique
    except OSError as error:
        raise TraceError(
            "output-unwritable",
            f"{folder} cannot be created ({error.strerror}), so nothing was run. Give another folder with --output.",
        ) from None
    raise AssertionError("the count of folders has no end")


def _ignore(folder: Path) -> None:
    """Traces are large, and none of a repository's business."""
    file = folder / _IGNORE
    if not file.exists():
        file.write_text("*\n", encoding="utf-8")


# Sends the output of a run to a log; where the terminal would have been, the program still finds one.

_POLL_MILLISECONDS = 50
_CHUNK_BYTES = 65536
_OUTPUT_MODES, _LOCAL_MODES = 1, 3


class OutputLog:
    """Standard output and error of one run; a context that ends with the run.

    Without a log both are inherited.
    """

    leaves_line_open: ClassVar[bool | None] = None
    """Whether the first output that went to a log ended within a line; None if none did. That of the run before it, which nobody keeps,
    most likely ended alike."""

    def __init__(self, log: Path | None) -> None:
        self.stdout: int | None = None
        self.stderr: int | None = None
        self._log = log
        self._terminal: _Terminal | None = None

    def __enter__(self) -> Self:
        """Open the log.

        Raises:
            OSError: It cannot be opened.
            LaunchError: There is a terminal to stand in for, and no pseudo terminal to do it.
        """
        if self._log is None:
            return self
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._log, flags, 0o600)
        terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        if terminals:
            self._terminal = _open_terminal(terminals[0], self._descriptor)
        self.stdout, self.stderr = (
            self._terminal.slave if self._terminal and stream in terminals else self._descriptor for stream in (1, 2)
        )
        return self

    def started(self) -> None:
        """The program has the descriptors now."""
        if self._terminal is not None:
            self._terminal.drain()

    def __exit__(self, *exception: object) -> None:
        if self._terminal is not None:
            self._terminal.close()
        if self._log is not None:
            if OutputLog.leaves_line_open is None:
                OutputLog.leaves_line_open = _is_within_line(self._log, None)
            os.close(self._descriptor)


def _open_terminal(like: int, log: int) -> _Terminal:
    try:
        return _Terminal(like, log)
    except (OSError, termios.error) as error:
        os.close(log)
        raise LaunchError(
            "terminal-unavailable",
            f"The first run writes to a terminal; no pseudo terminal can be opened for the later ones ({error}), so "
            f"they might behave differently. Send the command's output to a file or through `| cat`.",
        ) from None


class _Terminal:
    """A pseudo terminal of the same size as a real one, whose output goes to the log."""

    def __init__(self, like: int, log: int) -> None:
        self._master, self.slave = os.openpty()
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="output of the program", daemon=True)
        attributes = termios.tcgetattr(like)
        # The log gets the bytes that the program wrote, without carriage returns and without echoes.
        attributes[_OUTPUT_MODES] &= ~termios.OPOST
        attributes[_LOCAL_MODES] &= ~termios.ECHO
        termios.tcsetattr(self.slave, termios.TCSANOW, attributes)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(8)))

    def drain(self) -> None:
        os.close(self.slave)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            os.close(self.slave)
        os.close(self._master)

    def _copy(self) -> None:
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        while True:
            # Asked first: what was written before the program ended is there by then.
            stopping = self._stop.is_set()
            try:
                if not poll.poll(_POLL_MILLISECONDS):
                    if stopping:
                        return
                    continue
                data = os.read(self._master, _CHUNK_BYTES)
            except OSError:
                return
            if not data:
                return
            self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._log, data) :]
        except OSError:
            # A full disk must not stop the program, which would wait for its output to be taken.
            pass


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
        f"The program's input from the pipe cannot be stored ({error}), so later runs could not read the same. Free "
        "up space for temporary files, or redirect the input from a file.",
    )


def _ready(descriptor: int, event: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(_POLL_MILLISECONDS))


# Whether somebody still reads what the program prints.

_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2


def is_unread(descriptor: int = _STANDARD_OUTPUT) -> bool:
    """Whether a pipe or a socket has no reader any more, as after `| head`; files and terminals always have one."""
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except OSError:
        return False


def ends_within_line() -> bool:
    """Whether the standard output ends within a line, as far as that can be told after a run that wrote to it and one that wrote to a log."""
    try:
        output = os.fstat(_STANDARD_OUTPUT)
        if stat.S_ISREG(output.st_mode):
            # The program inherited the descriptor, and so has moved its offset.
            return _is_within_line(Path(f"/dev/fd/{_STANDARD_OUTPUT}"), os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_CUR))
        # What was said meanwhile on the same pipe ended the line.
        return bool(OutputLog.leaves_line_open) and not os.path.samestat(output, os.fstat(_STANDARD_ERROR))
    except OSError:
        return bool(OutputLog.leaves_line_open)


def _is_within_line(file: Path, end: int | None) -> bool:
    """Whether a file has a beginning of a line at its end, or at an offset that is given."""
    try:
        with file.open("rb", buffering=0) as opened:
            end = os.fstat(opened.fileno()).st_size if end is None else end
            return end > 0 and os.pread(opened.fileno(), 1, end - 1) != b"\n"
    except OSError:
        return False


# What equal tensors do not show: results that a program computes without them.

_NOT_COMPARED = "What the program computes without tensors is not compared."
_MOST_OUTPUT = 1 << 20
"""Bytes of a log that are looked at."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f.]+(?:p[-+]?\d+)?|\d[\d.]*(?:e[-+]?\d+)?)", re.IGNORECASE)
_OF_THE_MACHINE = re.compile(
    r"\b(?:0x[0-9a-f]{6,}|\d{4}-\d\d-\d\d|\d+:\d\d|time|times|elapsed|took|eta|duration|seconds?|minutes?|throughput|speed|fps|"
    r"memory|pid|port|rss|latency)\b|\d ?(?:s|sec|ms|us|ns|min|h|kb|mb|gb|[kmg]ib)\b|/s\b|s/|%\||/tmp/|it/",
    re.IGNORECASE,
)
"""In lines that show how long something took, where it lies, or when it was."""


def beyond_tensors(foreseen: str, logs: Sequence[Path]) -> list[str]:
    """What is to be said of runs whose tensors are equal, while other results may differ.

    Args:
        foreseen: The place at which lint foresaw a difference; empty if at none.
        logs: What each run printed, as far as it was kept.
    """
    texts = {log.stem.replace("-", " "): _lines(log) for log in logs if log.is_file()}
    names = list(texts)
    for name in names[1:]:
        found = differing_line(texts[names[0]], texts[name])
        if found is not None:
            one, other = (json.dumps(line[:_SHOWN], ensure_ascii=False) for line in found)
            return [f"No tensor differs, but {names[0]} printed {one}, and {name} {other}. {_NOT_COMPARED}"]
    return [f"{foreseen} changed no tensor. {_NOT_COMPARED}"] if foreseen else []


_SHOWN = 120


def _lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        text = file.read(_MOST_OUTPUT).decode("utf-8", "replace")
    return [line.strip() for line in re.split(r"[\r\n]+", _ESCAPES.sub("", text)) if line.strip()]


def differing_line(first: Sequence[str], second: Sequence[str]) -> tuple[str, str] | None:
    """The first line of a text that another one has with other numbers, wherever it stands there; None if there is none.

    Lines that show times, memory or addresses differ in every run, and say nothing.
    """
    others = list((Counter(second) - Counter(first)).elements())
    for line in (Counter(first) - Counter(second)).elements():
        if _OF_THE_MACHINE.search(line):
            continue
        words = _NUMBER.sub("#", line)
        found = next((other for other in others if _NUMBER.sub("#", other) == words), None)
        if found is not None:
            return line, found
    return None
