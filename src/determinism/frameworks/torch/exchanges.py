"""What processes exchange in other ways than by an op.

Objects travel as pickled bytes, which hold addresses and so differ in every run. What counts is the objects: they are
recorded as they are sent and as they arrive, and the tensors of bytes that carry them are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed

from determinism.frameworks.torch.data_loading import record_contents
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap

_FUNCTIONS = (
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list",
    "send_object_list",
)  # fmt: skip


def install(threads: Threads) -> list[Undo]:
    """Wrap the collectives of objects, and waiting; returns what takes each wrapper off."""
    if not torch.distributed.is_available():
        return []
    modules = (torch.distributed, torch.distributed.distributed_c10d)
    return [
        wrap(torch.distributed.Work, "wait", _waiting(threads)),
        *(
            wrap(module, name, _exchanging(threads))
            for module in modules
            for name in _FUNCTIONS
            if hasattr(module, name)
        ),
    ]


def _waiting(threads: Threads) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(*args, **kwargs)
        # Gloo copies the result out of a buffer of its own when it is waited for; that belongs to the collective.
        with recorder.suspended():
            return original(*args, **kwargs)

    return around


def _exchanging(threads: Threads) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(*args, **kwargs)
        with recorder.suspended():
            result = original(*args, **kwargs)
        # By now the lists among the arguments hold what arrived.
        exchanged = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, dict, torch.Tensor))]
        recorder.quietly(record_contents, recorder, "determinism::object", exchanged)
        return result

    return around
