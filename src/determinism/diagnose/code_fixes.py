"""The smallest change of a program that takes a source of nondeterminism away, at the line where it is used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from determinism.diagnose import seed_fixes
from determinism.diagnose.code_edits import Edit, ProgramText
from determinism.diagnose.code_place import Change, Place, Unfixable, keyword_of, last_name
from determinism.diagnose.set_fixes import fixed_set
from determinism.diagnose.sources import Source
from determinism.probes.code_change import CodeChange


def code_fix(source: Source, file: Path | None = None) -> CodeChange | None:
    """The change that takes a source away; None if no small change does, or the file is not there as it was.

    Args:
        source: The source, with its place.
        file: Where the program's file lies, if not where the site says.
    """
    fix = _FIXES.get(source.source)
    try:
        text = ProgramText((file or Path(source.site.file)).read_bytes(), source.site.file)
        node = _node_at(text, source)
        if fix is None or node is None:
            return None
        edits, imports = fix(Place(text, node, source))
    except (OSError, SyntaxError, ValueError, RecursionError, Unfixable):
        return None
    present = {ast.unparse(one) for one in ast.walk(text.tree) if isinstance(one, ast.Import | ast.ImportFrom)}
    missing = tuple(line for line in imports if line not in present)
    return CodeChange(source.site.file, text.changed(edits), missing) if edits else None


def _node_at(text: ProgramText, source: Source) -> ast.expr | None:
    site = source.site
    place = (site.line, site.column, site.end_line, site.end_column)
    found = [
        node
        for node in ast.walk(text.tree)
        if isinstance(node, ast.expr) and (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) == place
    ]
    # Of several pieces at one place, the outermost is the first.
    return found[0] if found else None


def _set_order(place: Place) -> Change:
    source = place.source
    return fixed_set(place.text, place.node, source.elements, source.argument, source.key) or [], ()


def _listing(place: Place) -> Change:
    text, call = place.text, place.call
    name = last_name(call.func)
    parent = text.parent(call)
    if name in ("walk", "fwalk"):
        return _sorted_walk(text, parent), ()
    if name == "scandir":
        if isinstance(parent, ast.withitem):
            raise Unfixable
        return text.around(call, "sorted(", ", key=lambda entry: entry.name)"), ()
    if isinstance(parent, ast.Call) and last_name(parent.func) == "list" and len(parent.args) == 1:
        return [text.renamed(parent.func, "sorted")], ()
    return text.around(call, "sorted(", ")"), ()


def _sorted_walk(text: ProgramText, loop: ast.AST | None) -> list[Edit]:
    """Sort the folders and files of each step of a walk, at the beginning of the loop's body."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple) or len(loop.target.elts) < 3:
        raise Unfixable
    names = [name.id for name in loop.target.elts[1:3] if isinstance(name, ast.Name)]
    first = loop.body[0]
    if len(names) != 2 or first.lineno == loop.lineno:
        raise Unfixable
    start, indentation = text.start(first), " " * first.col_offset
    return [Edit(start, start, "".join(f"{name}.sort()\n{indentation}" for name in names))]


def _hash(place: Place) -> Change:
    text, node = place.text, place.node
    key = keyword_of(node, "key")
    if key is not None and last_name(key.value) == "hash":
        return [text.replaced(key.value, "repr")], ()
    call = place.call
    if last_name(call.func) != "hash" or len(call.args) != 1:
        raise Unfixable
    argument = call.args[0]
    return [text.replaced(call, f"zlib.crc32(repr({text.of(argument)}).encode())")], ("import zlib",)


def _identity(place: Place) -> Change:
    text, node = place.text, place.node
    key = keyword_of(node, "key")
    if (
        key is None
        or last_name(key.value) != "id"
        or not isinstance(node, ast.Call)
        or last_name(node.func) != "sorted"
    ):
        raise Unfixable
    return [text.replaced(node, f"list({text.of(node.args[0])})")], ()


def _completion(place: Place) -> Change:
    text, call = place.text, place.call
    name = last_name(call.func)
    if name == "imap_unordered":
        return [text.renamed(call.func, "imap")], ()
    if name == "as_completed" and (call.args or keyword_of(call, "fs")):
        keyword = keyword_of(call, "fs")
        futures = call.args[0] if keyword is None else keyword.value
        kept = futures_in_order(text, futures)
        if kept is None:
            raise Unfixable
        return [text.replaced(call, kept[0]), *kept[1]], ()
    # What `wait` gives are sets, of which all that is done with them would have to change.
    raise Unfixable


def futures_in_order(text: ProgramText, futures: ast.expr) -> tuple[str, list[Edit]] | None:
    """The text that gives futures as they were submitted, and what else has to change for it; None if there is none."""
    if isinstance(futures, ast.SetComp | ast.Set):
        return f"[{text.of(futures)[1:-1]}]", []
    if not isinstance(futures, ast.Name):
        return text.of(futures), []
    given = [
        node.value
        for node in ast.walk(text.tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == futures.id for target in node.targets)
    ]
    sets = [value for value in given if isinstance(value, ast.SetComp | ast.Set)]
    if any(isinstance(value, ast.Call) and last_name(value.func) in ("set", "frozenset") for value in given):
        return None
    return futures.id, [text.replaced(value, f"[{text.of(value)[1:-1]}]") for value in sets]


def _memory(place: Place) -> Change:
    text, call = place.text, place.call
    name = last_name(call.func)
    new = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}.get(name)
    if new is None:
        raise Unfixable
    imported = () if isinstance(call.func, ast.Attribute) else _imported_beside(text, name, new)
    return [text.renamed(call.func, new)], imported


def _imported_beside(text: ProgramText, name: str, new: str) -> tuple[str, ...]:
    for node in ast.walk(text.tree):
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            return (f"from {node.module} import {new}",)
    return ()


def _kept(name: str) -> Callable[[Place], Change]:
    def fix(place: Place) -> Change:
        keyword = keyword_of(place.node, name)
        if keyword is None:
            raise Unfixable
        return [place.text.replaced(keyword.value, "True")], ()

    return fix


_FIXES: dict[str, Callable[[Place], Change]] = {
    "set-order": _set_order,
    "listing": _listing,
    "hash": _hash,
    "id": _identity,
    "clock": seed_fixes.constant_seed,
    "entropy": seed_fixes.entropy,
    "process-id": seed_fixes.constant_seed,
    "machine-state": seed_fixes.constant_seed,
    "file-time": seed_fixes.constant_seed,
    "unseeded-generator": seed_fixes.unseeded,
    "seed-value": seed_fixes.seed_value,
    "completion-order": _completion,
    "uninitialized-array": _memory,
    "checkpoint-rng": _kept("preserve_rng_state"),
    "loader-order": _kept("in_order"),
}
"""How each source is taken away. A queue's order, and draws from a generator that nobody seeded, take more than one line."""
