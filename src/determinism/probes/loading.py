"""Compiles the user's modules from rewritten syntax trees: in memory, whatever lies in caches, and leaving these alone."""

from __future__ import annotations

import ast
import copy
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from types import CodeType
from typing import Any

from determinism.code_owner import Owner, owner_of_module
from determinism.probes.code_change import CodeChange, Unchangeable, changed_tree
from determinism.probes.rewriting import rewritten
from determinism.relocation import original_path

_MOST_BYTES = 4_000_000
_NOT_CHANGED = 70
"""Exit status of a process that cannot run the change it was asked to run."""
_OF_IMPORTLIB = "<frozen importlib._bootstrap_external>"

NotProbed = Callable[[str, str, str], None]
"""Told the module, the file and the reason, if a module of the user runs as it is."""

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
    ) -> None:
        """Take what is to be done.

        Args:
            started: The top-level packages that the program was started as.
            not_probed: Told what is not probed.
            rewrites: Whether probes go into the code.
            changes: Of the program's text.
        """
        self._started = started
        self._not_probed = not_probed
        self._rewrites = rewrites
        self._changes = changes

    def install(self) -> None:
        """Have every module of the user loaded from now on rewritten."""
        original: Any = SourceFileLoader.get_code
        code_of = self.code_of

        def get_code(loader: Any, fullname: str) -> Any:
            code = code_of(fullname, loader.path) if type(loader) is SourceFileLoader else None
            return original(loader, fullname) if code is None else code

        # Python leaves the frames of its import system out of tracebacks; it knows them by this name.
        get_code.__code__ = get_code.__code__.replace(co_filename=_OF_IMPORTLIB)
        SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]

    def is_wanted(self, module: str, file: str) -> bool:
        """Whether a module is to run from other code than that of its file."""
        return bool(self._changes_of(file)) or (self._rewrites and self.is_users(module, file))

    def _changes_of(self, file: str) -> list[CodeChange]:
        return [one for one in self._changes if one.file == original_path(os.path.abspath(file))]

    def is_users(self, module: str, file: str) -> bool:
        """Whether a module is the user's. A framework is not, though its launcher may be what was started."""
        owner = owner_of_module(module, file)
        return owner is Owner.USER or (owner is Owner.LIBRARY and module.partition(".")[0] in self._started)

    def code_of(self, module: str, file: str) -> CodeType | None:
        """The rewritten code of a module; None if it is not the user's or cannot be rewritten."""
        try:
            if not self.is_wanted(module, file):
                return None
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
            # The program is to come upon it by itself.
            return None
        except Unchangeable as error:
            # A run without the change would show that it does not help, which nobody knows.
            print(f"determinism: {file} is not what it was when the change was made: {error}.", file=sys.stderr)
            os._exit(_NOT_CHANGED)
        except Exception as error:
            self._not_probed(module, file, f"{type(error).__name__}: {error}")
            return None

    def _compiled(self, source: bytes, file: str, changes: Sequence[CodeChange]) -> CodeType:
        tree = changed_tree(source, file, changes)
        if self._rewrites:
            tree = rewritten(tree, file)
            _rewritten_files.add(file)
        code: CodeType = compile(tree, file, "exec", dont_inherit=True)
        return code

    def rewritten_cell(self, tree: ast.Module, file: str) -> ast.Module:
        """The rewritten syntax tree of a notebook's cell; the tree itself if it cannot be rewritten.

        Args:
            tree: As it was parsed.
            file: What the cell's code objects are said to be of.
        """
        try:
            result = rewritten(copy.deepcopy(tree), file) if self._rewrites else tree
        except Exception as error:
            self._not_probed("__main__", file, f"{type(error).__name__}: {error}")
            return tree
        _rewritten_files.add(file)
        return result

    def note_unprobed(self) -> None:
        """Tell which modules of the user were loaded in another way."""
        command = sys.orig_argv
        if sys.argv[:1] == ["-c"] and not any("multiprocessing" in argument for argument in command):
            self._not_probed("__main__", "<string>", "it was given on the command line, with -c")
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or is_rewritten(file) or not file.endswith((".py", ".pyc")):
                continue
            if self.is_users(name, file) and not name.startswith("_sysconfigdata"):
                loader = type(getattr(module, "__loader__", None)).__name__
                self._not_probed(name, file, f"it was loaded by {loader}, which makes code of its own")
