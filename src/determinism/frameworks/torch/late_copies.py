"""Copies from a device to the host that are still under way when their op returns.

With `non_blocking=True` and page-locked memory the host goes on at once, and what the memory holds before the program has waited
means nothing. So such an output is digested when it is read, like that of a collective.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from determinism.frameworks.torch.op_traits import OpTraits


def as_called(traits: OpTraits, args: Any, kwargs: Any) -> OpTraits:
    """The traits of one call of an op of `op_traits.COPIES`."""
    non_blocking = kwargs.get("non_blocking", False) or (len(args) > 2 and args[2])
    return _late(traits) if non_blocking and _leads_to_host(args, kwargs) else traits


def _leads_to_host(args: Any, kwargs: Any) -> bool:
    if len(args) > 1:
        target, source = args[0].device, args[1]
    else:
        target, source = kwargs.get("device"), args[0]
    return target is not None and torch.device(target).type == "cpu" and source.device.type not in ("cpu", "meta")


@lru_cache
def _late(traits: OpTraits) -> OpTraits:
    return replace(traits, is_collective=True)
