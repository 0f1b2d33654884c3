"""Which of several kernels compilers chose by timing them: Inductor for the ops of a graph, and Triton for functions under `autotune`.

A choice is a fact of the run. It decides in which order a kernel adds, so runs that chose differently give different bits; where the results are the
same bits the choice does not matter, so it is no record of its own.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from determinism.environment import CHOICE_OF_KERNEL
from determinism.frameworks.wrapping import Undo, wrap
from determinism.import_hook import after_import

SELECTION = "torch._inductor.select_algorithm"
"""Where Inductor chooses between ATen, and its templates in C++ and Triton (torch 2.13: `AlgorithmSelectorCache.__call__`)."""
HEURISTICS = "torch._inductor.runtime.triton_heuristics"
"""Where Inductor times the configurations of a kernel that it wrote in Triton (`CachingAutotuner.autotune_to_one_config`)."""
AUTOTUNER = "triton.runtime.autotuner"
"""Where Triton times those of a function of the user (triton 3: `Autotuner`)."""
_NUMBER_AT_END = re.compile(r"_\d+$")
_MOST_CHOICES = 200


class KernelChoices:
    """The choices of this process."""

    def __init__(self) -> None:
        """Nothing was chosen yet."""
        self._chosen: dict[str, str] = {}
        self._tuned: list[weakref.ref[Any]] = []
        """The functions that Triton tunes; what it chose for each is asked for at the end."""

    def watch(self, failed: Callable[[str], None]) -> Undo:
        """Note what is chosen from now on.

        Args:
            failed: Told why a compiler could not be watched.

        Returns:
            What ends that.
        """
        undo: list[Undo] = []

        def selection_found(module: Any) -> None:
            undo.append(wrap(module.AlgorithmSelectorCache, "__call__", self._selected))

        def heuristics_found(module: Any) -> None:
            undo.append(wrap(module.CachingAutotuner, "autotune_to_one_config", self._configured))

        def autotuner_found(module: Any) -> None:
            undo.append(wrap(module.Autotuner, "__init__", self._made))

        waiting = [
            after_import(SELECTION, selection_found, failed),
            after_import(HEURISTICS, heuristics_found, failed),
            after_import(AUTOTUNER, autotuner_found, failed),
        ]

        def end() -> None:
            for one in (*waiting, *undo):
                one()

        return end

    def facts(self) -> dict[str, str]:
        """By the work, as a name of a fact, the kernel that was chosen for it."""
        found = dict(self._chosen)
        for reference in self._tuned:
            if (tuner := reference()) is not None:
                found.update(_tuned(tuner))
        return {CHOICE_OF_KERNEL + work: kernel for work, kernel in sorted(found.items())[:_MOST_CHOICES]}

    def _selected(
        self, original: Callable[..., Any], cache: Any, name: Any, choices: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(cache, name, choices, inputs, *args, **kwargs)
        # What fails is only what another version of Inductor calls things; the program has its kernel.
        with suppress(Exception):
            chosen = result[1] if isinstance(result, tuple) else None
            if chosen is not None:
                work = f"{name} of {', '.join(map(_shape, inputs))} by Inductor"
                self._chosen.setdefault(work, _kernel(chosen))
        return result

    def _configured(self, original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tuner, *args, **kwargs)
        with suppress(Exception):
            work = f"{tuner.fn.__name__} by Inductor"
            self._chosen.setdefault(work, str(tuner.launchers[0].config))
        return result

    def _made(self, original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        original(tuner, *args, **kwargs)
        self._tuned.append(weakref.ref(tuner))


def _shape(node: Any) -> str:
    """The sizes of an input as Inductor has them: numbers, or names of sizes that vary."""
    sizes: Sequence[Any] = node.get_size()
    return "x".join(map(str, sizes)) or "1"


def _kernel(choice: Any) -> str:
    """The name of a choice without the number that only counts the candidates, and what tells it from others of that name."""
    name = _NUMBER_AT_END.sub("", str(choice.name))
    backend = "ATen" if type(choice).__name__ == "ExternKernelCaller" else ""
    detail = " ".join(str(getattr(choice, "description", "") or "").split())
    more = ", ".join(part for part in (backend, detail) if part)
    return f"{name} ({more})" if more else name


def _tuned(tuner: Any) -> Iterator[tuple[str, str]]:
    try:
        name, cache = tuner.base_fn.__name__, dict(tuner.cache)
    except AttributeError:
        # An older version of Triton.
        return
    for key, config in cache.items():
        values = ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
        yield f"{name}({values}) by Triton", str(config)
