"""Sends the output of a run to a log; where the terminal would have been, the program still finds one."""

from __future__ import annotations

import fcntl
import os
import select
import termios
import threading
from pathlib import Path
from typing import Self

from determinism.errors import LaunchError

_POLL_MILLISECONDS = 50
_CHUNK_BYTES = 65536
_OUTPUT_MODES, _LOCAL_MODES = 1, 3


class OutputLog:
    """Standard output and error of one run; a context that ends with the run.

    Without a log both are inherited.
    """

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
        self._descriptor = os.open(self._log, flags, 0o666)
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
            os.close(self._descriptor)


def _open_terminal(like: int, log: int) -> _Terminal:
    try:
        return _Terminal(like, log)
    except (OSError, termios.error) as error:
        os.close(log)
        raise LaunchError(
            "terminal-unavailable",
            f"The first run writes to a terminal; no pseudo terminal can be opened for the later ones ({error}), so "
            f"they could take another way through the program. Send the command's output to a file or through `| cat`.",
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
