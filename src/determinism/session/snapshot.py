"""What a call can reach, and the generators it draws from, copied so that a second call starts where the first did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from determinism import rng
from determinism.errors import StateError
from determinism.session.contents import SetContents
from determinism.session.framework_state import FrameworkState, loaded_frameworks
from determinism.session.ownership import Ownership
from determinism.session.reachable import Reachable, globals_of


class Snapshot:
    """The state that a call depends on, at one moment.

    Objects are put back in place: whoever holds them holds the same objects afterwards.
    """

    def __init__(self, reached: Reachable, frameworks: Mapping[str, FrameworkState]) -> None:
        """Use `take` instead."""
        self._contents = sorted(reached.contents, key=lambda entry: entry[1].order)
        # Keeps every object alive that the copies are known by.
        self._reached = reached
        self._generators = rng.capture()
        self._framework_generators = {name: state.capture_generators() for name, state in frameworks.items()}

    @classmethod
    def take(cls, function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Snapshot:
        """Copy the contents of everything that a call of `function` with these arguments can reach.

        Raises:
            StateError: Something reachable cannot be copied; the message names the way to it.
        """
        frameworks = loaded_frameworks()
        module = (globals_of(function) or {}).get("__name__") or getattr(function, "__module__", None)
        reached = Reachable(Ownership(module), list(frameworks.values()))
        with _undisturbed(frameworks):
            reached.walk(function, tuple(args), dict(kwargs))
            for _, contents in reached.contents:
                if isinstance(contents, SetContents):
                    contents.restore(_same)
            return cls(reached, frameworks)

    def restore(self) -> None:
        """Put everything back; may be called any number of times.

        Raises:
            StateError: Something was changed in a way that cannot be undone; the message names the way to it.
        """
        frameworks = loaded_frameworks()
        fresh = {thing: make() for thing, make in self._reached.renewals.items()}

        def renewed(thing: object) -> object:
            return fresh.get(id(thing), thing)

        with _undisturbed(frameworks):
            for trail, contents in self._contents:
                try:
                    contents.restore(renewed if fresh else _same)
                except Exception as error:
                    raise StateError("state-unrestored", _UNRESTORED.format(trail.text(), error)) from error
            rng.restore(self._generators)
            for name, state in frameworks.items():
                state.restore_generators(self._framework_generators.get(name))


_UNRESTORED = (
    "{} cannot be put back as it was before the call: {}. A second call would not start where the first one did. "
    "Create it inside the function, or check the whole program with `determinism check -- python ...`, which starts "
    "new processes."
)


def _same(thing: object) -> object:
    return thing


@contextmanager
def _undisturbed(frameworks: Mapping[str, FrameworkState]) -> Iterator[None]:
    with ExitStack() as stack:
        for state in frameworks.values():
            stack.enter_context(state.undisturbed())
        yield
