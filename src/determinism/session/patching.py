"""`determinism.patch`: deterministic replacements of ops that have no deterministic implementation of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, TracebackType

from determinism.frameworks.registry import PATCHERS
from determinism.frameworks.replaced_ops import ReplacedOps
from determinism.import_hook import after_import

_NO_PATCHES = {
    "jax": "XLA has deterministic forms of its ops, or refuses them; there are no patches for it yet",
}


class Patches:
    """What `determinism.patch` replaced.

    Attributes:
        replaced: Per framework the ops that were replaced by this call; none of those that were replaced already.
        absent: Per framework the ops that there is a replacement for, and that the installed version lacks.
        skipped: Per framework the reason why nothing was replaced.
        waiting: Frameworks that are not imported yet; their ops are replaced when they are.
    """

    def __init__(self) -> None:
        self.replaced: dict[str, list[str]] = {}
        self.absent: dict[str, list[str]] = {}
        self.skipped: dict[str, str] = {}
        self.waiting: list[str] = []
        self._restorers: list[Callable[[], None]] = []
        self._restored = False

    def restore(self) -> None:
        """Put the stock ops back. What was built with the replacements, such as functions that were traced, keeps them."""
        self._restored = True
        while self._restorers:
            self._restorers.pop()()

    def __enter__(self) -> Patches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        lines = [f"{name}: {', '.join(ops) or 'replaced before'}" for name, ops in self.replaced.items()]
        lines += [f"{name}: not in this version: {', '.join(ops)}" for name, ops in self.absent.items()]
        lines += [f"{name}: nothing replaced: {reason}" for name, reason in self.skipped.items()]
        lines += [f"{name}: waits for the import" for name in self.waiting]
        return "\n".join(lines)

    def _begin(self) -> None:
        for name in _NO_PATCHES:
            after_import(name, self._leave, lambda words: None)
        for name in PATCHERS:
            if name not in sys.modules:
                self.waiting.append(name)
            after_import(name, self._apply, lambda words: None)

    def _leave(self, module: ModuleType) -> None:
        self.skipped[module.__name__] = _NO_PATCHES[module.__name__]

    def _apply(self, module: ModuleType) -> None:
        name = module.__name__
        if self._restored:
            return
        if name in self.waiting:
            self.waiting.remove(name)
        try:
            found: ReplacedOps = import_module(PATCHERS[name]).apply()
        except Exception as error:  # the import of a framework must not fail for this
            self.skipped[name] = f"replacing failed with {type(error).__name__}: {error}"
            return
        self._restorers.append(found.restore)
        if found.absent:
            self.absent[name] = found.absent
        if found.reason is None:
            self.replaced[name] = found.ops
        else:
            self.skipped[name] = found.reason


def patch() -> Patches:
    """Replace ops that have no deterministic implementation in the installed version by ones that have.

    For PyTorch with `torch.library.get_kernel`: what `torch.use_deterministic_algorithms` refuses, and what varies without a word, by kernels that are put at
    its dispatcher. For TensorFlow 2.16 to 2.21: what `tf.config.experimental.enable_op_determinism` refuses on a GPU, and what varies on the CPU
    even so. Call it before functions are traced and models are built, before or after the import of TensorFlow; together with
    `determinism.enable`, in either order. A second call changes nothing. Nothing is printed; look at the result.

    Returns:
        What was replaced. As a context (`with determinism.patch():`) it puts everything back at the end.
    """
    patches = Patches()
    patches._begin()
    return patches
