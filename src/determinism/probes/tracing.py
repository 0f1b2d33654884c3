"""Lets PyTorch's compiler see through the probes, which would otherwise break its graphs."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from determinism.probes import probe_names


def let_compiler_see_through() -> None:
    """Tell the compiler, once it was imported, that each probe gives back what it got."""
    decorators = sys.modules["torch._dynamo.decorators"]
    for name in probe_names.ALL:
        probe: Any = getattr(builtins, name, None)
        if probe is not None:
            decorators.substitute_in_graph(probe, skip_signature_check=True)(_given_back())


def _given_back() -> Any:
    def given_back(site: str, value: Any, name: str = "") -> Any:
        return value

    return given_back
