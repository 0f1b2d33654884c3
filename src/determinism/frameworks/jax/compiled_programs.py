"""What XLA compiled: two runs that baked different numbers into a function ran different programs."""

from __future__ import annotations

import weakref
from typing import Any

from determinism import relocation
from determinism.digest import digest_bytes, digest_many


class CompiledPrograms:
    """A text for each executable, which is the same in each run that compiled the same program."""

    def __init__(self) -> None:
        self._texts: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def text(self, execution: Any) -> str:
        """What tells the program of an `ExecuteReplicated` from others.

        Empty for one that calls back into Python: it holds the address of what it calls.
        """
        if execution.has_host_callbacks:
            return ""
        known = self._texts.get(execution)
        if known is None:
            modules = execution.xla_executable.hlo_modules()
            digest = digest_many(
                digest_bytes(_at_original_paths(one.as_serialized_hlo_module_proto())) for one in modules
            )
            known = self._texts[execution] = f"program={digest.hex()}"
        return known


def _at_original_paths(program: bytes) -> bytes:
    """A program with the paths that its files have outside of a copy of the working directory."""
    copied = relocation.copy_of()
    return program if copied is None else program.replace(copied[0].encode(), copied[1].encode())
