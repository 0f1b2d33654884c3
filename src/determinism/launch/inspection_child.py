"""Inspect all settings in the interpreter that runs this file and write them as JSON; or build its native recorder.

Any interpreter may run this script, so it is restricted to Python 3.8 until it knows the version.
"""

from __future__ import annotations

import json
import os
import sys


def _found(request: str) -> dict[str, object]:
    if sys.version_info < (3, 11):  # noqa: UP036  # this may be another Python than the package's
        return {"python": sys.version.split()[0]}
    _import_own_package()
    from dataclasses import asdict
    from importlib import import_module

    from determinism.frameworks.registry import ENABLERS
    from determinism.knowledge.settings import Request, is_installed, version_of
    from determinism.session.enable import look

    failures = {}
    for framework in ENABLERS:
        if is_installed(framework):
            try:
                import_module(framework)
            except Exception as error:
                failures[framework] = f"{type(error).__name__}: {error}"
    settings = look(Request(**json.loads(request)))
    return {
        "python": sys.version.split()[0],
        "frameworks": {name: version for name in ENABLERS if (version := version_of(name)) is not None},
        "failures": failures,
        "settings": [{**asdict(one), "before": _plain(one.before), "after": _plain(one.after)} for one in settings],
        "remaining": [asdict(one) for one in settings.remaining],
        "recorders": {"torch": _native_recorder()} if is_installed("torch") and "torch" not in failures else {},
    }


def _native_recorder() -> str:
    """Return which recorder would record PyTorch here, and why the native one would not."""
    from importlib import import_module

    from determinism.types import Level

    recorder, reason = import_module("determinism.frameworks.torch.native_recorder").recorder_for(
        Level.OP, paranoid=False
    )
    return f"{recorder.name}: {reason}" if reason else str(recorder.name)


def _build() -> int:
    """Build the native recorder if it is wanted and PyTorch is installed; return the exit status."""
    if sys.version_info < (3, 11):  # noqa: UP036  # this may be another Python than the package's
        return 0
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return 0
    _import_own_package()
    return int(import_module("determinism.frameworks.torch.native_library").prepare())


def _plain(value: object) -> object:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _import_own_package() -> None:
    from importlib.machinery import PathFinder

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            return PathFinder.find_spec(name, [root]) if name == "determinism" else None

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    import determinism.errors  # noqa: F401  # any module: what counts is where the package is found

    sys.meta_path.remove(Finder)  # type: ignore[arg-type]


if __name__ == "__main__":
    # The folder of this file, whose modules must not replace others of the same name.
    del sys.path[0]
    if sys.argv[1:] == ["--build"]:
        sys.exit(_build())
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(_found(sys.argv[2]), file)
