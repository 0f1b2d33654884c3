"""Has IPython compile the cells of a notebook from rewritten syntax trees."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from determinism.notebook_cells import is_cell
from determinism.probes.loading import Loading


def rewrite_cells(compilers: ModuleType, loading: Loading) -> None:
    """Have each cell that is run from now on rewritten.

    Args:
        compilers: IPython's module `IPython.core.compilerop`.
        loading: What rewrites.
    """
    original: Any = compilers.CachingCompiler.ast_parse

    def ast_parse(compiler: Any, source: str, filename: str = "<unknown>", symbol: str = "exec") -> Any:
        tree = original(compiler, source, filename, symbol)
        return loading.rewritten_cell(tree, filename) if symbol == "exec" and is_cell(filename) else tree

    compilers.CachingCompiler.ast_parse = ast_parse
