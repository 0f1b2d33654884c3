"""Compiles the user's modules from rewritten syntax trees, in memory: bytecode caches are neither read nor written."""

from __future__ import annotations

import ast
import copy
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source
from types import CodeType, ModuleType, TracebackType
from typing import Any

from determinism.errors import legible
from determinism.import_hook import IMPORT_SYSTEM_FILE
from determinism.probes.rewrite import library_rewritten, rewritten
from determinism.run_spec import CodeChange
from determinism.source_files import Owner, is_cell, original_path, owner_of_module

_OF_COMPILERS = ("sympy", "mpmath")
"""PyTorch's compiler computes sizes with these; the generators that they make when imported affect nothing a program sees."""
_MOST_BYTES = 4_000_000
_NOT_CHANGED = 70
"""Exit status of a process that cannot apply the change it was asked to run with."""

SEEDING_NAMES = frozenset(
    {"Random", "SystemRandom", "seed", "RandomState", "default_rng", "SeedSequence", "PCG64", "PCG64DXSM", "MT19937",
     "Philox", "SFC64", "manual_seed", "manual_seed_all", "seed_all", "PRNGKey", "set_seed", "set_random_seed",
     "seed_everything", "Rngs"}
)  # fmt: skip
"""The last parts of the names of functions that make or seed a generator."""
_SEEDING = re.compile(rb"\b(" + b"|".join(name.encode() for name in sorted(SEEDING_NAMES)) + rb")\s*\(")

NotProbed = Callable[[str, str, str], None]
"""Called with the module, the file and the reason when a module of the user runs unprobed."""

_rewritten_files: set[str] = set()


def is_rewritten(file: str) -> bool:
    """Whether the code of a file was rewritten in this process."""
    return file in _rewritten_files


class Loading:
    """Makes the import system load rewritten code."""

    def __init__(
        self,
        started: frozenset[str],
        not_probed: NotProbed,
        *,
        rewrites: bool = True,
        changes: Sequence[CodeChange] = (),
        takes_notes: bool = False,
        library_files: Collection[str] = (),
    ) -> None:
        """Take what to load in another form.

        Args:
            started: The top-level packages that Python was started to run.
            not_probed: Called for each module that is not probed.
            rewrites: Whether to put probes into the code.
            changes: Changes to the program's text.
            takes_notes: Whether notes are taken: if so, calls that make or seed generators in libraries are probed, too.
            library_files: Library files in which such calls are probed in any case.
        """
        self._started = started
        self._not_probed = not_probed
        self._rewrites = rewrites
        self._changes = changes
        self._takes_notes = takes_notes
        self._library_files = frozenset(library_files)

    def install(self) -> None:
        """Rewrite every module of the user that is loaded from now on."""
        original: Any = SourceFileLoader.get_code
        code_of = self.code_of

        def get_code(loader: Any, fullname: str) -> Any:
            code = code_of(fullname, loader.path) if type(loader) is SourceFileLoader else None
            return original(loader, fullname) if code is None else code

        get_code.__code__ = get_code.__code__.replace(co_filename=IMPORT_SYSTEM_FILE)
        SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]

    def is_wanted(self, module: str, file: str) -> bool:
        """Whether a module is to run from code other than that of its file."""
        return bool(self._changes_of(file)) or (self._rewrites and self.is_users(module, file))

    def _changes_of(self, file: str) -> list[CodeChange]:
        return [one for one in self._changes if one.file == original_path(os.path.abspath(file))]

    def is_users(self, module: str, file: str) -> bool:
        """Whether a module is the user's. A framework is not, even if its launcher is what was started."""
        owner = owner_of_module(module, file)
        return owner is Owner.USER or (owner is Owner.LIBRARY and module.partition(".")[0] in self._started)

    def code_of(self, module: str, file: str) -> CodeType | None:
        """The rewritten code of a module; None if it stays as it is, or cannot be rewritten."""
        try:
            if not self.is_wanted(module, file):
                return self._library_code_of(module, file)
            changes = self._changes_of(file)
            with open(file, "rb") as opened:
                source = opened.read()
            if len(source) > _MOST_BYTES and not changes:
                self._not_probed(module, file, f"it has {len(source)} bytes, more than {_MOST_BYTES}")
                return None
            with warnings.catch_warnings():
                if module != "__main__" and os.path.exists(cache_from_source(file)):
                    # The program would have loaded it from there, without the compiler's warnings.
                    warnings.simplefilter("ignore")
                return self._compiled(source, file, changes)
        except SyntaxError:
            # The program is to run into it by itself.
            return None
        except Unchangeable as error:
            # A run without the change would look as if the change did not help.
            message = f"{file} is not what it was when the change was made: {error}."
            print(f"determinism: {legible(message)}", file=sys.stderr)
            os._exit(_NOT_CHANGED)
        except Exception as error:
            self._not_probed(module, file, f"{type(error).__name__}: {error}")
            return None

    def _compiled(self, source: bytes, file: str, changes: Sequence[CodeChange]) -> CodeType:
        tree = changed_tree(source, file, changes)
        if self._rewrites:
            tree = rewritten(tree, file, asks_for_results=self._takes_notes)
            _rewritten_files.add(file)
        code: CodeType = compile(tree, file, "exec", dont_inherit=True)
        return code

    def _library_code_of(self, module: str, file: str) -> CodeType | None:
        """The code of a library's module with probes where generators are made or seeded; None if it does neither."""
        is_wanted = self._takes_notes or original_path(os.path.abspath(file)) in self._library_files
        if not (self._rewrites and is_wanted) or owner_of_module(module, file) is not Owner.LIBRARY:
            return None
        if module.partition(".")[0] in _OF_COMPILERS:
            return None
        with open(file, "rb") as opened:
            source = opened.read(_MOST_BYTES + 1)
        if len(source) > _MOST_BYTES or _SEEDING.search(source) is None:
            return None
        try:
            with warnings.catch_warnings():
                # The program would have loaded it from a cache, without the compiler's warnings.
                warnings.simplefilter("ignore")
                tree = library_rewritten(ast.parse(source, file), file, SEEDING_NAMES)
                code: CodeType = compile(tree, file, "exec", dont_inherit=True)
                return code
        except (ValueError, RecursionError):
            # Nobody expects notes from a library.
            return None

    def rewritten_cell(self, tree: ast.Module, file: str) -> ast.Module:
        """The rewritten syntax tree of a notebook's cell; the tree itself if it cannot be rewritten.

        Args:
            tree: The parsed cell.
            file: The file name in the cell's code objects.
        """
        try:
            result = tree
            if self._rewrites:
                result = rewritten(copy.deepcopy(tree), file, asks_for_results=self._takes_notes)
        except Exception as error:
            self._not_probed("__main__", file, f"{type(error).__name__}: {error}")
            return tree
        _rewritten_files.add(file)
        return result

    def note_unprobed(self) -> None:
        """Note which modules of the user were loaded in another way."""
        command = sys.orig_argv
        if sys.argv[:1] == ["-c"] and not any("multiprocessing" in argument for argument in command):
            self._not_probed("__main__", "<string>", "it was given on the command line, with -c")
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or is_rewritten(file) or not file.endswith((".py", ".pyc")):
                continue
            if self.is_users(name, file) and not name.startswith("_sysconfigdata"):
                loader = type(getattr(module, "__loader__", None)).__name__
                self._not_probed(name, file, f"it was loaded by {loader}, which compiles code itself")


# Has IPython compile the cells of a notebook from rewritten syntax trees.


def rewrite_cells(compilers: ModuleType, loading: Loading) -> None:
    """Rewrite each cell that is run from now on; `compilers` is IPython's module `IPython.core.compilerop`."""
    original: Any = compilers.CachingCompiler.ast_parse

    def ast_parse(compiler: Any, source: str, filename: str = "<unknown>", symbol: str = "exec") -> Any:
        tree = original(compiler, source, filename, symbol)
        return loading.rewritten_cell(tree, filename) if symbol == "exec" and is_cell(filename) else tree

    compilers.CachingCompiler.ast_parse = ast_parse


# Runs the script that Python was started with from rewritten code.
#
# `python train.py` reads the file without the import system. But first Python asks `sys.path_hooks` whether the script
# can be imported from, like a zip file. A hook answers for this one script; asked for `__main__`, it runs the script in
# the module, and with all the names, of a plain run.

_MAGIC_OF_ZIP = b"PK\x03\x04"


def install(loading: Loading) -> None:
    """Rewrite the script that this Python was started with, if it is one of the user's."""
    script = sys.argv[0] if sys.argv else ""
    if script in ("", "-c", "-m") or "-x" in sys.orig_argv or not os.path.isfile(script):
        return
    with open(script, "rb") as file:
        begin = file.read(4)
    if (
        begin != _MAGIC_OF_ZIP
        and not script.endswith(".pyc")
        and loading.is_wanted("__main__", os.path.abspath(script))
    ):
        sys.path_hooks.insert(0, _Hook(loading, script))


class _Hook:
    """A path hook: asked for each entry of the search path, it answers for the script, once."""

    def __init__(self, loading: Loading, script: str) -> None:
        self._loading = loading
        self._script = script
        self._is_done = False

    def __call__(self, entry: str) -> _Script:
        if self._is_done or os.path.abspath(entry) != os.path.abspath(self._script):
            raise ImportError(entry)
        self._is_done = True
        code = self._loading.code_of("__main__", entry)
        if code is None:
            # Python moves on to the next hook by index, so this one has to stay.
            raise ImportError(entry)
        sys.path_hooks.remove(self)
        return _Script(entry, code, sys.modules["__main__"])


class _Script:
    """Finds and loads `__main__`: the script."""

    def __init__(self, file: str, code: CodeType, main: ModuleType) -> None:
        self._file = file
        self._code = code
        self._main = main

    def find_spec(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, origin=self._file) if name == "__main__" else None  # type: ignore[arg-type]

    def get_code(self, _: str) -> CodeType:
        """Run the script. Python calls this once, to run `__main__` of an entry of the search path."""
        sys.modules["__main__"] = self._main
        _restore_path(self._file)
        _name_as_script(vars(self._main), self._file)
        _run(self._code, vars(self._main))
        raise SystemExit

    def create_module(self, _: ModuleSpec) -> None:
        return None

    def exec_module(self, _: ModuleType) -> None:
        return None


def _restore_path(file: str) -> None:
    """Make the search path that of a plain run: the script's folder comes first, where Python puts it there."""
    sys.path_importer_cache.pop(file, None)
    if sys.path[:1] == [file]:
        del sys.path[0]
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path.insert(0, os.path.dirname(os.path.realpath(file)))


def _name_as_script(names: dict[str, Any], file: str) -> None:
    names.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))


def _run(code: CodeType, names: dict[str, Any]) -> None:
    """Run the script's code; an exception ends the program as it would in a plain run."""
    try:
        exec(code, names)
    except SystemExit:
        raise
    except BaseException as error:
        # The frames outside the script are Python's and our own.
        traceback = error.__traceback__
        within = None if traceback is None else traceback.tb_next
        _show(error.with_traceback(within), within)
        if isinstance(error, KeyboardInterrupt):
            # Python then ends by the signal, and shows nothing more.
            sys.excepthook = _show_nothing
            raise
        raise SystemExit(1) from None


def _show(error: BaseException, traceback: TracebackType | None) -> None:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    if sys.version_info >= (3, 12):
        sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]
    sys.excepthook(type(error), error, traceback)


def _show_nothing(*_: Any) -> None:
    return


def rewrite_spawned(runpy: ModuleType, loading: Loading) -> None:
    """Rewrite the script when a process that `multiprocessing` spawned reads it again."""
    original: Any = runpy._get_code_from_file

    def get_code_from_file(*arguments: Any) -> Any:
        found = original(*arguments)
        code = loading.code_of("__main__", arguments[-1])
        if code is None:
            return found
        return (code, *found[1:]) if isinstance(found, tuple) else code

    runpy._get_code_from_file = get_code_from_file  # type: ignore[attr-defined]


# Changes to the program's modules while they are loaded; the files themselves stay as they are.


class Unchangeable(Exception):
    """The text is not the one that the change was made for, or two changes affect the same lines."""


def changed_tree(source: bytes, file: str, changes: Sequence[CodeChange]) -> ast.Module:
    """The syntax tree of a module with changes made to its text. Added imports take no line of their own.

    Raises:
        Unchangeable: The changes do not fit this text, or each other.
        SyntaxError: The text, or the changed text, is not valid Python.
    """
    tree = ast.parse(_changed_text(source, changes), file)
    imports = dict.fromkeys(line for change in changes for line in change.imports)
    at = _after_future_imports(tree.body)
    for line in reversed(imports):
        [added] = ast.parse(line, file).body
        if tree.body[at:]:
            ast.copy_location(added, tree.body[at])
        tree.body.insert(at, ast.fix_missing_locations(added))
    return tree


def _changed_text(source: bytes, changes: Sequence[CodeChange]) -> bytes:
    lines = source.splitlines(keepends=True)
    wanted = sorted(
        {lines for change in changes for lines in change.changes},
        key=lambda one: (one.line, one.end_line),
        reverse=True,
    )
    above = len(lines) + 1
    for one in wanted:
        if one.end_line >= above:
            raise Unchangeable(f"two changes to line {one.end_line}")
        above = one.line
        begin, end = one.line - 1, one.end_line
        before = b"".join(lines[begin:end])
        if before.rstrip(b"\r\n") != one.before.encode():
            raise Unchangeable(f"line {one.line} is {before[:80]!r}")
        lines[begin:end] = [one.after.encode() + before[len(before.rstrip(b"\r\n")) :]]
    return b"".join(lines)


def _after_future_imports(body: Sequence[ast.stmt]) -> int:
    """The index of the first statement that an import may precede."""
    place = 0
    for number, statement in enumerate(body):
        is_text = number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            place = number + 1
        else:
            break
    return place
