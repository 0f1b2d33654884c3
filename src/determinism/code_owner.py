"""Whose code a frame runs: the user's, an installed library's, or that of the framework and the interpreter.

User code is what lies outside the standard library, the frameworks, NumPy, this package, and the folders that packages
are installed to. The package that was started (`python -m package`, a console script) is the user's wherever it lies.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from enum import IntEnum
from functools import cache
from types import FrameType

_FRAMEWORKS = frozenset(
    {"torch", "torchgen", "functorch", "triton", "tensorflow", "keras", "jax", "jaxlib", "numpy", "determinism"}
)
_LIBRARY = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Owner(IntEnum):
    """Whose code it is."""

    FOREIGN = 0
    """The interpreter's, a framework's, or ours."""
    LIBRARY = 1
    """An installed package."""
    USER = 2


def owner_of(frame: FrameType) -> Owner:
    """Whose code a frame runs; generated code counts only in the started program itself."""
    module = str(frame.f_globals.get("__name__", ""))
    file = frame.f_code.co_filename
    if file.startswith("<"):
        return Owner.USER if module == "__main__" or file.startswith("<ipython") else Owner.FOREIGN
    root = module.partition(".")[0]
    if root in _FRAMEWORKS:
        return Owner.FOREIGN
    is_installed = any(part in file for part in _INSTALLED)
    if not is_installed and file.startswith(_LIBRARY) and (root in sys.stdlib_module_names or root == "__main__"):
        return Owner.FOREIGN
    if root in _started_packages():
        return Owner.USER
    if is_installed or _is_script(file) or _holds_distributions(_import_folder(file, root)):
        return Owner.LIBRARY
    return Owner.USER


def _import_folder(file: str, root: str) -> str:
    """The folder that a module was imported from."""
    before, found, _ = file.rpartition(f"{os.sep}{root}{os.sep}")
    return before if found else os.path.dirname(file)


@cache
def _holds_distributions(folder: str) -> bool:
    """Whether packages were installed to a folder (`pip install --target`)."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def _is_script(file: str) -> bool:
    """Whether a file is a console script, which only calls into a package."""
    folder, name = os.path.split(file)
    return "." not in name and folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable))


def _started_packages() -> frozenset[str]:
    """The top-level packages that the program was started as."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return frozenset({str(spec.name).partition(".")[0]})
    if main is None or not _is_script(str(getattr(main, "__file__", ""))):
        return frozenset()
    called = [getattr(value, "__module__", None) for value in vars(main).values() if callable(value)]
    return frozenset(str(name).partition(".")[0] for name in called if name) - {"builtins", "__main__"}
