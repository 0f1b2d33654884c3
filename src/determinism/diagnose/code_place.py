"""A piece of a program that uses a source, and what it takes to look at it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from determinism.diagnose.code_edits import Edit, ProgramText
from determinism.diagnose.sources import Source

Change = tuple[list[Edit], tuple[str, ...]]
"""Edits, and the imports that they need."""


class Unfixable(Exception):
    """There is no small change for this place."""


@dataclass(frozen=True)
class Place:
    """A piece of a program that uses a source."""

    text: ProgramText
    node: ast.expr
    source: Source

    @property
    def call(self) -> ast.Call:
        """The piece, which is a call.

        Raises:
            Unfixable: It is none.
        """
        if not isinstance(self.node, ast.Call):
            raise Unfixable
        return self.node


def last_name(node: ast.expr) -> str:
    """The last of the names by which something is called; empty if it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword_of(node: ast.expr, name: str) -> ast.keyword | None:
    """A keyword of a call; None if it has no such one, or is none."""
    if not isinstance(node, ast.Call):
        return None
    return next((keyword for keyword in node.keywords if keyword.arg == name), None)
