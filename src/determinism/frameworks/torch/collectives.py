"""What collectives write. Their schemas do not say it (torch 2.13: `torch/csrc/distributed/c10d/Ops.cpp`)."""

from __future__ import annotations

from typing import Any

import torch

_NAMESPACES = ("c10d", "_c10d_functional")

ADDED_TO = frozenset({"c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::reduce_"})
"""They read what they write: their first argument."""

FILLED = frozenset(
    {
        "c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::allgather_", "c10d::allgather_coalesced_",
        "c10d::allgather_into_tensor_coalesced_", "c10d::alltoall_", "c10d::alltoall_base_", "c10d::broadcast_",
        "c10d::gather_", "c10d::recv_", "c10d::recv_any_source_", "c10d::reduce_scatter_",
        "c10d::reduce_scatter_tensor_coalesced_", "c10d::scatter_", "_c10d_functional::irecv",
        "fsdp::all_gather_copy_in",
    }
)  # fmt: skip
"""They write their first argument (`fsdp::all_gather_copy_in` its second) and do not read it; a broadcast reads it in
the root."""

WITHOUT_VALUES = frozenset({"c10d::barrier", "c10d::monitored_barrier_"})
"""They take a tensor of which nothing is used."""

_FSDP_COPY = "fsdp::all_gather_copy_in"
"""Puts the part of this process into a buffer, its second argument, that an all-gather then fills."""


def targets(name: str) -> tuple[int, ...]:
    """Positions of the arguments that an op writes without saying so."""
    if name == _FSDP_COPY:
        return (1,)
    return (0,) if name in ADDED_TO or name in FILLED else ()


def is_collective(name: str) -> bool:
    """Whether what an op writes may still be on its way when the op returns."""
    return name.partition("::")[0] in _NAMESPACES or name == _FSDP_COPY


def root_at(name: str) -> int | None:
    """Position of the rank that alone reads what the op writes; None if there is no such rank."""
    return 2 if name == "c10d::broadcast_" else None


def is_root(args: Any, position: int) -> bool:
    """Whether this process is the root of a collective, whose second argument is the group of processes."""
    group = torch.distributed.ProcessGroup.unbox(args[1])
    return bool(group.rank() == args[position])
