"""Which line of the program a record of a thread belongs to."""

from __future__ import annotations

from determinism.trace.chunk import Chunk
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace


def line_of(stream: ProcessTrace, chunk: Chunk, row: int) -> Frame | None:
    """The line that made a record; where no code of the program did, the line that made its thread."""
    stack = stream.names.stack(int(chunk.columns["stack"][row]))
    return stack[0] if stack else _made_at(stream, int(chunk.columns["thread"][row]))


def _made_at(stream: ProcessTrace, thread: int) -> Frame | None:
    made_at = stream.description.get("threads_made_at") or []
    text = made_at[thread - 1] if 0 < thread <= len(made_at) else ""
    return stream.names.frame(text) if text else None
