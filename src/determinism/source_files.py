"""The files that code comes from: their owners, the names of notebook cells, and the originals of copied files.

User code is all code outside the standard library, the frameworks, NumPy, this package, and the folders to which
packages are installed. The package that was started (`python -m package`, a console script) is always the user's.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from enum import IntEnum
from functools import cache
from types import FrameType

# The owner of a frame's code: the user, an installed library, or the framework and the interpreter.

_FRAMEWORKS = frozenset(
    {"torch", "torchgen", "functorch", "triton", "tensorflow", "keras", "jax", "jaxlib", "numpy", "determinism"}
)
_LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_RUNNERS = frozenset({"pytest", "_pytest", "pluggy", "xdist"})
"""Packages that run the user's tests: not part of the program even if they were started as the program."""
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Owner(IntEnum):
    """Owner of code."""

    FOREIGN = 0
    """The interpreter, a framework, or this package."""
    LIBRARY = 1
    """An installed package."""
    USER = 2


def owner_of(frame: FrameType) -> Owner:
    """Return the owner of a frame's code; generated code is the user's only in the started program itself."""
    return owner_of_module(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename)


def owner_of_module(module: str, file: str) -> Owner:
    """Return the owner of a module's code.

    Args:
        module: Full name of the module.
        file: The file that it was read from, or its generator in angle brackets.
    """
    if file.startswith("<"):
        return Owner.USER if module == "__main__" or file.startswith("<ipython") else Owner.FOREIGN
    root = module.partition(".")[0]
    if root in _FRAMEWORKS:
        return Owner.FOREIGN
    is_installed = any(part in file for part in _INSTALLED)
    if not is_installed and file.startswith(_LIBRARY) and (root in sys.stdlib_module_names or root == "__main__"):
        return Owner.FOREIGN
    if root in _started_packages() and root not in _RUNNERS:
        return Owner.USER
    if (
        is_installed
        or _is_of_installed(root)
        or is_console_script(file)
        or _holds_distributions(_import_folder(file, root))
    ):
        return Owner.LIBRARY
    return Owner.USER


def owner_of_file(file: str) -> Owner:
    """Return the owner of a file's code when only its absolute path is known."""
    if file.startswith(_OWN):
        return Owner.FOREIGN
    for part in _INSTALLED:
        _, found, rest = file.rpartition(part)
        if found:
            return owner_of_module(rest.partition(os.sep)[0].removesuffix(".py"), file)
    if file.startswith(_LIBRARY):
        return Owner.FOREIGN
    folder, name = os.path.split(file)
    return owner_of_module(_package_of(folder) or name.removesuffix(".py"), file)


@cache
def _package_of(folder: str) -> str:
    """Return the top-level package that a folder belongs to; empty if it is not part of one."""
    found = ""
    while os.path.basename(folder) and os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, found = os.path.split(folder)
    return found


def package_folder(file: str) -> str | None:
    """Return the folder, or the file, of the installed top-level package that a file belongs to; None if it is in none."""
    for part in _INSTALLED:
        before, found, rest = file.rpartition(part)
        if found:
            return before + found + rest.partition(os.sep)[0]
    return None


def _is_of_installed(root: str) -> bool:
    """Whether an imported top-level package is installed: code that it writes into files elsewhere is also its own."""
    package = None if root in ("__main__", "__mp_main__") else sys.modules.get(root)
    return any(part in str(getattr(package, "__file__", "")) for part in _INSTALLED)


def _import_folder(file: str, root: str) -> str:
    """Return the folder that a module was imported from."""
    before, found, _ = file.rpartition(f"{os.sep}{root}{os.sep}")
    return before if found else os.path.dirname(file)


@cache
def _holds_distributions(folder: str) -> bool:
    """Whether packages were installed to a folder (`pip install --target`)."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def is_console_script(file: str) -> bool:
    """Whether a file is a console script, which only calls into a package."""
    folder, name = os.path.split(file)
    return "." not in name and folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable))


def _started_packages() -> frozenset[str]:
    """Return the top-level packages as which the program was started."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return frozenset({str(spec.name).partition(".")[0]})
    if main is None or not is_console_script(str(getattr(main, "__file__", ""))):
        return frozenset()
    called = [getattr(value, "__module__", None) for value in vars(main).values() if callable(value)]
    return frozenset(str(name).partition(".")[0] for name in called if name) - {"builtins", "__main__"}


# Notebook cells: `In[3]` in every run, whereas IPython's name for their file contains the process id.

_OF_KERNEL = re.compile(re.escape(os.sep) + r"ipykernel_\d+" + re.escape(os.sep))


def is_cell(path: str) -> bool:
    """Whether a code object's file is a cell run by IPython, in a terminal or a notebook."""
    return path.startswith("<ipython-input-") or _OF_KERNEL.search(path) is not None


def cell_name(path: str) -> str | None:
    """Return the name of a cell with its execution number, `In[3]`; None for files that are not cells.

    Args:
        path: File name from the code object.
    """
    if not is_cell(path):
        return None
    module = sys.modules.get("IPython.core.getipython")
    shell = None if module is None else module.get_ipython()
    try:
        named = None if shell is None else shell.compile.format_code_name(path)
    except Exception:
        named = None
    return str(named[1]) if named else _OF_KERNEL.sub(f"{os.sep}ipykernel{os.sep}", path)


# The original files of a program that was started in a copy of its folder.

_moves: list[tuple[str, str]] = []


def set_copy(copy: str, original: str) -> None:
    """Declare that this process runs in a copy of a folder."""
    _moves[:] = [(copy, original)]


def original_path(path: str) -> str:
    """Return a path, or the original path if it is in the copy."""
    for copy, original in _moves:
        if path == copy or path.startswith(copy + os.sep):
            return original + path[len(copy) :]
    return path


def copy_of() -> tuple[str, str] | None:
    """Return the copy that this process runs in and the original folder; None if it runs in no copy."""
    return _moves[0] if _moves else None
