"""Start recording and enabling in every Python process of the program, then run the `sitecustomize` hidden by this one.

The program's interpreter runs this file whatever its version, so it is restricted to the common subset of Python 2.7
and Python 3; and at every startup, so it imports next to nothing.
"""

import os
import sys

_BOOTSTRAP = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_BOOTSTRAP)))
_IS_SUPPORTED = sys.version_info >= (3, 11)


class _OwnPackageFinder(object):
    """Finds the package of this file, which need not be on `sys.path`, before any other copy of it."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "determinism":
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [_ROOT])


def _is_asked_for(part):
    # type: (str) -> bool
    """See `notes.is_requested`; the package must not be imported here, since its requirements may be missing."""
    return '"' + part + '": {' in os.environ.get("DETERMINISM_RUN", "")


def _import_own_package():
    # type: () -> None
    finder = _OwnPackageFinder()
    sys.meta_path.insert(0, finder)
    try:
        import determinism  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


def _start_recording():
    # type: () -> None
    from determinism.launch.child import start

    start()


def _start_probing():
    # type: () -> None
    from determinism.probes.child import start

    start()


def _start_enabling():
    # type: () -> None
    from determinism.launch.enabling_child import start_enabling

    start_enabling()


def _start_factors():
    # type: () -> None
    from determinism.launch.enabling_child import start_factors

    start_factors()


def _note(reason):
    # type: (str) -> None
    try:
        path = os.path.join(os.path.dirname(_BOOTSTRAP), "notes.py")
        names = {"__name__": "determinism_notes", "__file__": path}
        with open(path) as file:  # `runpy` needs `sys.argv`, which Python before 3.8 has not set yet.
            exec(compile(file.read(), path, "exec"), names)
        names["note_not_recorded"](reason)  # type: ignore[operator]
    except Exception:  # The program continues even if the note cannot be written.
        pass


def _say(reason):
    # type: (str) -> None
    try:
        escaped = "".join(one if one.isprintable() else repr(one)[1:-1] for one in reason)
        sys.stderr.write("determinism: " + escaped + "\n")
    except Exception:
        pass


def _described(error):
    # type: (Exception) -> str
    return type(error).__name__ + ": " + str(error)


def _wake():
    # type: () -> None
    parts = (
        ("probes", _start_probing, _say, "{} is not probed: {}"),
        ("enabling", _start_enabling, _say, "{} was not made deterministic: {}"),
        ("factors", _start_factors, _note, "The experiment could not start in {}: {}"),
        ("recording", _start_recording, _note, "Recording could not start in {}: {}"),
    )
    for part, start, report, message in parts:
        if not _is_asked_for(part):
            continue
        try:
            _import_own_package()
            start()
        except Exception as error:
            report(message.format(sys.executable, _described(error)))


sys.path[:] = [entry for entry in sys.path if entry != _BOOTSTRAP]
if _IS_SUPPORTED:
    _wake()
elif _is_asked_for("recording"):
    _note(
        "{} is Python {}.{}; recording needs 3.11 or newer. Run the program with a newer Python.".format(
            sys.executable, sys.version_info[0], sys.version_info[1]
        )
    )

# With this module out of the way, the import system finds the hidden one and puts it in our place. If there is none, it
# raises the ModuleNotFoundError that `site` expects.
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
