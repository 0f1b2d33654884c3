"""The file of record batches of one process, read at any of its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from determinism.errors import TraceError
from determinism.trace.batches import RECORD_SCHEMA
from determinism.trace.schema import FORMAT


class Placed(NamedTuple):
    """A batch as it stands in the file, and where the one after it begins."""

    message: Any
    end: int


class BatchStream:
    """The batches of a stream; what its end lacks is no error, since a process may be killed while it writes."""

    def __init__(self, path: Path) -> None:
        """Open the file and read which columns it has.

        Raises:
            TraceError: It is not there, or has other columns.
        """
        self.is_broken = False
        """Whether something follows the last batch that could be read."""
        self.start: int | None = None
        """Where the first batch begins; None if the file ends before that."""
        try:
            self._source: Any = pa.OSFile(str(path))
            if not self._source.size():
                # Arrow writes the description of the columns with the first batch; there was none yet.
                return
            columns = pa.ipc.read_schema(self._source)
        except (pa.ArrowException, OSError, EOFError) as error:
            if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
                raise TraceError(
                    "trace-damaged",
                    f"{path} cannot be read ({error}), so this trace is not whole. Record the run again.",
                ) from None
            self.is_broken = True
            return
        if not columns.equals(RECORD_SCHEMA):
            raise TraceError(
                "trace-damaged",
                f"{path} has other columns than {FORMAT!r} has, so this trace was changed or damaged. Record the run again.",
            )
        self.start = int(self._source.tell())

    def at(self, offset: int) -> Placed | None:
        """The batch that begins at an offset; None at the end of what can be read."""
        try:
            self._source.seek(offset)
            message = pa.ipc.read_message(self._source)
        except EOFError:
            return None
        except (pa.ArrowException, OSError):
            self.is_broken = True
            return None
        return Placed(message, int(self._source.tell()))
