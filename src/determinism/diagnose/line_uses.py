"""The calls of a line, each taken for the use of a source: where the recorder knows the line, and nothing noted the piece of it."""

from __future__ import annotations

import ast
from pathlib import Path

from determinism.diagnose.sources import Source, SourceSite
from determinism.probes.request import FixedSource


def possible_uses(held: FixedSource) -> list[Source]:
    """Every call that begins at a line, the outermost first; empty if the file cannot be read.

    Args:
        held: The line, and what is used there.
    """
    try:
        text = Path(held.file).read_bytes()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return []
    code = text.splitlines()[held.line - 1].decode(errors="replace").strip() if held.line else ""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == held.line]
    return [_use(node, held, code) for node in calls]


def _use(call: ast.Call, held: FixedSource, code: str) -> Source:
    end_line, end_column = call.end_lineno or call.lineno, call.end_col_offset or 0
    site = SourceSite(held.file, call.lineno, call.col_offset, end_line, end_column, "", code)
    return Source(held.source, site, "", None, "", (0, 0), None, 0, (0, 0), (None, None))
