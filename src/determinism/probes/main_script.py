"""Runs the script that Python was started with from rewritten code.

`python train.py` reads the file without the import system. But before that Python asks `sys.path_hooks` whether the script
is something to import from, as a zip file is. Here a hook answers for this one script; whoever then asks it for
`__main__` gets the script run, in the module and with all the names that a plain run gives it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from determinism.probes.loading import Loading

_MAGIC_OF_ZIP = b"PK\x03\x04"


def install(loading: Loading) -> None:
    """Have the script rewritten that this Python was started with, if it was started with one of the user's."""
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
    """Asked for each entry of the search path; answers for the script, once."""

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
            # Python goes on to the next hook by its number, so this one has to stay.
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
        """Run the script. It is called once, by what Python runs a script of the search path with."""
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
    """Put into the search path what a plain run puts there: the script's folder, where Python does so."""
    sys.path_importer_cache.pop(file, None)
    if sys.path[:1] == [file]:
        del sys.path[0]
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path.insert(0, os.path.dirname(os.path.realpath(file)))


def _name_as_script(names: dict[str, Any], file: str) -> None:
    names.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))


def _run(code: CodeType, names: dict[str, Any]) -> None:
    """Run the script's code; what it raises ends the program as it would in a plain run."""
    try:
        exec(code, names)
    except SystemExit:
        raise
    except BaseException as error:
        # The frames outwards of the script are Python's and ours.
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
    """Have the script rewritten where a process that `multiprocessing` spawned reads it again.

    Args:
        runpy: The module `runpy`.
        loading: What rewrites.
    """
    original: Any = runpy._get_code_from_file

    def get_code_from_file(*arguments: Any) -> Any:
        found = original(*arguments)
        code = loading.code_of("__main__", arguments[-1])
        if code is None:
            return found
        return (code, *found[1:]) if isinstance(found, tuple) else code

    runpy._get_code_from_file = get_code_from_file  # type: ignore[attr-defined]


__all__: Sequence[str] = ("install", "rewrite_spawned")
