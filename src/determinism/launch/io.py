"""Input and output of the programs under check: the same standard input for each run, logs, folders."""

from __future__ import annotations

import fcntl
import itertools
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

from determinism.comparison.divergence import PrintedDifference
from determinism.errors import LaunchError, TraceError
from determinism.trace.files import make_private_folder

# The folder for the traces and logs of a check.

DEFAULT_FOLDER = Path(".determinism")
_IGNORE = ".gitignore"


class OutputFolder:
    """The files of one check: for each run a trace, the log of its output, and that of the command that prepared it."""

    def __init__(self, output: Path | None) -> None:
        """Create the folder.

        Args:
            output: Its path; None for a new folder below `.determinism`.

        Raises:
            TraceError: It exists and is not empty, or cannot be created.
        """
        self._is_default = output is None
        self.path = _new_folder(output)

    def trace(self, name: str) -> Path:
        """Return the path of a run's trace."""
        return self.path / name

    def log(self, name: str) -> Path:
        """Return the path of the log with a run's output."""
        return self.path / f"{name}.log"

    def preparation_log(self, name: str) -> Path:
        """Return the path of the log with the output of the command before a run."""
        return self.path / f"{name}.before.log"

    def discard(self, name: str, *, with_log: bool = True) -> None:
        """Remove the files of a run and nothing else, since the program may also have put files into the folder."""
        shutil.rmtree(self.trace(name), ignore_errors=True)
        self.preparation_log(name).unlink(missing_ok=True)
        if with_log:
            self.log(name).unlink(missing_ok=True)

    def remove_if_empty(self) -> None:
        """Remove the folder if it is empty; if it is the default one, also the folder around it."""
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
    """Keep traces, which are large, out of the user's repository."""
    file = folder / _IGNORE
    if not file.exists():
        file.write_text("*\n", encoding="utf-8")


# Sends the output of a run to a log, through a pseudo terminal if the program would have had a terminal. The output of
# a shown run is copied to the log on its way to where it would have gone.

_POLL_MILLISECONDS = 50
_CHUNK_BYTES = 65536
_OUTPUT_MODES, _LOCAL_MODES = 1, 3
_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2


class OutputLog:
    """Standard output and error of one run; a context manager for the duration of the run.

    Without a log, both are inherited.
    """

    leaves_line_open: ClassVar[bool | None] = None
    """Whether the first output that went to a log ended in the middle of a line; None before there is one. The output
    of an earlier run, which is not kept, most likely ended in the same way."""

    def __init__(self, log: Path | None, *, is_shown: bool = False) -> None:
        """Open nothing yet.

        Args:
            log: File for the output; None to inherit the streams.
            is_shown: Whether the output is also passed on, as it arrives, to where it would have gone without a log.
        """
        self.stdout: int | None = None
        self.stderr: int | None = None
        self._log = log
        self._is_shown = is_shown
        self._relay: _Relay | None = None
        self._written: list[tuple[int, int]] = []
        """For each regular file that the program itself writes to: the descriptor, and where the output begins."""

    def __enter__(self) -> Self:
        """Open the log.

        Raises:
            OSError: It cannot be opened.
            LaunchError: The first run has a terminal, but no pseudo terminal can be opened to replace it.
        """
        if self._log is None:
            return self
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._log, flags, 0o600)
        self._relay = _Relay(self._descriptor)
        try:
            self.stdout, self.stderr = self._shown_streams() if self._is_shown else self._logged_streams()
        except (OSError, termios.error) as error:
            self._relay.close()
            os.close(self._descriptor)
            if not self._is_shown:
                raise LaunchError(
                    "terminal-unavailable",
                    f"The first run writes to a terminal; no pseudo terminal can be opened for the later ones ({error}), so "
                    f"they might behave differently. Send the command's output to a file or through `| cat`.",
                ) from None
            # The streams are inherited unchanged, and the output stays unknown.
            self._log.unlink(missing_ok=True)
            self._log = None
        return self

    def _logged_streams(self) -> tuple[int, int]:
        assert self._relay is not None
        terminals = [stream for stream in (_STANDARD_OUTPUT, _STANDARD_ERROR) if os.isatty(stream)]
        terminal = self._relay.terminal(terminals[0], None) if terminals else self._descriptor
        output, error = (
            terminal if stream in terminals else self._descriptor for stream in (_STANDARD_OUTPUT, _STANDARD_ERROR)
        )
        return output, error

    def _shown_streams(self) -> tuple[int | None, int | None]:
        output = self._shown_stream(_STANDARD_OUTPUT)
        if _are_alike(_STANDARD_OUTPUT, _STANDARD_ERROR):
            # One channel for both keeps their order.
            return output, output
        return output, self._shown_stream(_STANDARD_ERROR)

    def _shown_stream(self, stream: int) -> int | None:
        """Return the descriptor that the program gets in place of one of our streams; None for the stream itself."""
        assert self._relay is not None
        try:
            mode = os.fstat(stream).st_mode
        except OSError:
            return None
        if os.isatty(stream):
            return self._relay.terminal(stream, stream)
        if not stat.S_ISREG(mode):
            return self._relay.pipe(stream)
        self._written.append((stream, _end_of_output(stream)))
        return None

    def started(self) -> None:
        """Start relaying, now that the program has the descriptors."""
        if self._relay is not None:
            self._relay.start()

    def __exit__(self, *exception: object) -> None:
        if self._log is None:
            return
        assert self._relay is not None
        self._relay.close()
        for stream, begin in self._written:
            with suppress(OSError):
                _copy_part(stream, begin, _end_of_output(stream), self._descriptor)
        if OutputLog.leaves_line_open is None:
            OutputLog.leaves_line_open = _is_within_line(self._log, None)
        os.close(self._descriptor)


def _are_alike(one: int, other: int) -> bool:
    """Whether two descriptors refer to the same pipe, file or terminal."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


def _end_of_output(stream: int) -> int:
    """Return the offset at which the next output to a regular file would go."""
    if fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_APPEND:
        return os.fstat(stream).st_size
    # A process that inherits the descriptor shares its offset.
    return os.lseek(stream, 0, os.SEEK_CUR)


def _copy_part(stream: int, begin: int, end: int, log: int) -> None:
    with open(f"/dev/fd/{stream}", "rb", buffering=0) as file:
        file.seek(begin)
        while begin < end and (data := file.read(min(_CHUNK_BYTES, end - begin))):
            _write_all(log, data)
            begin += len(data)


class _Relay:
    """Copies what a program writes to pipes and pseudo terminals to the log and to where it would have gone."""

    def __init__(self, log: int) -> None:
        self._log = log
        self._shown: dict[int, int | None] = {}
        """For each end that is read, the descriptor to which its output is passed on; None if only the log gets it."""
        self._terminals: dict[int, int] = {}
        """For each master end of a pseudo terminal, the terminal that it replaces."""
        self._of_program: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="output of the program", daemon=True)

    def terminal(self, like: int, shown: int | None) -> int:
        """Open a pseudo terminal with the size of a real one, and return the program's end.

        Raises:
            OSError: None can be opened.
            termios.error: Its modes cannot be set.
        """
        master, slave = os.openpty()
        self._add(master, slave, shown)
        attributes = termios.tcgetattr(like)
        # The output is exactly what the program wrote, without added carriage returns or echoes.
        attributes[_OUTPUT_MODES] &= ~termios.OPOST
        attributes[_LOCAL_MODES] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, _size_of_terminal(like))
        self._terminals[master] = like
        return slave

    def pipe(self, shown: int) -> int:
        """Open a pipe and return the program's end.

        Raises:
            OSError: None can be opened.
        """
        read, write = os.pipe()
        self._add(read, write, shown)
        return write

    def _add(self, read: int, of_program: int, shown: int | None) -> None:
        self._shown[read] = shown
        self._of_program.append(of_program)

    def start(self) -> None:
        """Begin to copy; from now on only the program holds its ends."""
        self._close_ends_of_program()
        if self._shown:
            self._thread.start()

    def close(self) -> None:
        """Copy the remaining output and stop."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._close_ends_of_program()
        for read in self._shown:
            os.close(read)
        self._shown.clear()

    def _close_ends_of_program(self) -> None:
        while self._of_program:
            os.close(self._of_program.pop())

    def _copy(self) -> None:
        poll = select.poll()
        open_ends = set(self._shown)
        for read in open_ends:
            poll.register(read, select.POLLIN)
        while open_ends:
            # Checked before polling: output that was written before the program ended is available by then.
            stopping = self._stop.is_set()
            ready = poll.poll(_POLL_MILLISECONDS)
            if not ready and stopping:
                return
            self._take_over_sizes()
            for read, _ in ready:
                if not self._pass_on(read):
                    poll.unregister(read)
                    open_ends.remove(read)

    def _pass_on(self, read: int) -> bool:
        """Pass on the available output; return whether more can come."""
        try:
            data = os.read(read, _CHUNK_BYTES)
        except OSError:
            return False
        # A full disk must not stop the program, which would wait for its output to be read.
        with suppress(OSError):
            _write_all(self._log, data)
        shown = self._shown[read]
        if data and shown is not None:
            try:
                _write_all(shown, data)
            except OSError:
                # Nobody reads it anymore; the program learns that from its next output, as it would have without us.
                self._shown.pop(read)
                os.close(read)
                return False
        return bool(data)

    def _take_over_sizes(self) -> None:
        for master, like in self._terminals.items():
            with suppress(OSError):
                size = _size_of_terminal(like)
                if self._shown.get(master) is not None and size != _size_of_terminal(master):
                    fcntl.ioctl(master, termios.TIOCSWINSZ, size)


def _size_of_terminal(terminal: int) -> bytes:
    return fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # Another process with the same pipe has made it non-blocking.
            _ready(descriptor, select.POLLOUT)


class StandardInput:
    """The standard input of the program, kept for the runs after the first.

    A terminal or device is inherited unchanged, a file is read from the same offset by every run, and input from a pipe
    is kept as far as the program has consumed it.
    """

    def __init__(self, descriptor: int = 0) -> None:
        """Inspect the descriptor without reading from it yet.

        Raises:
            LaunchError: Input from a pipe cannot be kept.
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
                # The file has no name on disk, so nothing is left behind however this process ends.
                self._spool = tempfile.TemporaryFile()  # noqa: SIM115
            except OSError as error:
                raise _not_kept(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._spool is not None:
            with suppress(OSError):
                # This retries what a full disk did not take, which is no longer needed.
                self._spool.close()

    def for_run(self) -> InputOfRun:
        """Return the input for the next run, from the beginning.

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
        """Return the input after `position`: b"" at the end of the input, None if nothing has arrived in a while."""
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
    """The standard input of one run; a context manager for the duration of the run."""

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
        """Start feeding, now that the program has the descriptor."""
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
            # The program closed its end or the pipe broke; either way nothing more arrives.
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


# Whether the program's output still has a reader.


def is_unread() -> bool:
    """Whether standard output is a pipe or socket that no longer has a reader, as after `| head`."""
    try:
        mode = os.fstat(_STANDARD_OUTPUT).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(_STANDARD_OUTPUT, select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except OSError:
        return False


def ends_mid_line() -> bool:
    """Whether standard output probably ends in the middle of a line, after runs that wrote to it or to a log."""
    try:
        output = os.fstat(_STANDARD_OUTPUT)
        if stat.S_ISREG(output.st_mode):
            # The program inherited the descriptor and so moved its offset.
            return _is_within_line(Path(f"/dev/fd/{_STANDARD_OUTPUT}"), os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_CUR))
        # If standard error is the same pipe, our own messages have ended the line.
        return bool(OutputLog.leaves_line_open) and not os.path.samestat(output, os.fstat(_STANDARD_ERROR))
    except OSError:
        return bool(OutputLog.leaves_line_open)


def _is_within_line(file: Path, end: int | None) -> bool:
    """Whether a file's content up to an offset, or to its end, ends in the middle of a line."""
    try:
        with file.open("rb", buffering=0) as opened:
            end = os.fstat(opened.fileno()).st_size if end is None else end
            return end > 0 and os.pread(opened.fileno(), 1, end - 1) != b"\n"
    except OSError:
        return False


# Differences in printed numbers, which a program may compute without tensors.

_MOST_OUTPUT = 1 << 20
"""How many bytes of a log are read."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f.]+(?:p[-+]?\d+)?|\d[\d.]*(?:e[-+]?\d+)?)", re.IGNORECASE)
_OF_THE_MACHINE = re.compile(
    r"(?<![\d.])(?:\d{4}-\d\d-\d\d|20\d{6}[-_t]?\d{6}|1[6-9]\d{8}(?:\.\d+)?)\b"
    r"|\b(?:0x[0-9a-f]{6,}|\d+:\d\d|localhost:\d+|time|times|elapsed|took|eta|dt|duration|"
    r"seconds?|secs?|minutes?|wall|throughput|speed|fps|sps|tps|memory|mem|peak|pid|port|rss|latency|cpu|uptime)\b"
    r"|(?:^|_)(?:time|secs?|seconds|ms)(?:_|\b)|\d ?(?:s|sec|ms|us|µs|ns|min|h|kb|mb|gb|[kmg]ib)\b|/s(?:ec)?\b|s/|%\||/tmp/|it/",
    re.IGNORECASE,
)
"""Matches lines that show durations, addresses, times or other properties of the machine."""


def printed_difference(logs: Sequence[Path]) -> PrintedDifference | None:
    """Return two printed lines that differ only in numbers; None if there are none.

    Args:
        logs: Log of each run's output, in order; missing ones are skipped.
    """
    texts = {number: _lines(log) for number, log in enumerate(logs, start=1) if log.is_file()}
    first, *others = texts or [0]
    for other in others:
        found = differing_line(texts[first], texts[other])
        if found is not None:
            one, another = (line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..." for line in found)
            return PrintedDifference((first, other), one, another)
    return None


_SHOWN = 120


def _lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        text = file.read(_MOST_OUTPUT).decode("utf-8", "replace")
    return [line.strip() for line in re.split(r"[\r\n]+", _ESCAPES.sub("", text)) if line.strip()]


def differing_line(first: Sequence[str], second: Sequence[str]) -> tuple[str, str] | None:
    """Return the first line that another text has, anywhere, with different numbers; None if there is none.

    Lines that show times, memory or addresses are skipped, since they differ in every run.
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
