"""Where a state was captured: versions, rank, devices. It fits only where these are the same."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection, Mapping
from typing import Any

from determinism.errors import StateError
from determinism.frameworks.registry import STATE_KEEPERS
from determinism.session.child_seeding import rank_of_environment
from determinism.session.seeding import active_seeds
from determinism.state.frameworks import loaded_keepers

_WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "HOROVOD_SIZE", "SLURM_NTASKS")
"""Environment variables in which launchers tell how many ranks there are, in the order of those that tell the rank."""


def surroundings() -> dict[str, Any]:
    """Versions of what computes, rank, number of ranks and devices."""
    seeds = active_seeds()
    together = next((found for _, adapter in loaded_keepers() if (found := adapter.rank()) is not None), None)
    rank = rank_of_environment() if together is None else together[0]
    if rank is None and seeds is not None:
        rank = seeds.streams.rank
    world = next((os.environ[name] for name in _WORLD_VARIABLES if os.environ.get(name, "").isdecimal()), "1")
    if together is not None:
        world = str(together[1])
    devices: dict[str, int] = {}
    for _, adapter in loaded_keepers():
        devices.update(adapter.devices())
    return {"rank": rank or 0, "ranks": int(world), "devices": devices, "versions": _versions()}


def _versions() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("numpy", *STATE_KEEPERS):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def misfits(saved: Mapping[str, Any], allow: Collection[str]) -> list[str]:
    """What of the surroundings differs in a way that keeps a resumed run from having the same bits, in words.

    Args:
        saved: What `surroundings` gave when the state was captured.
        allow: `rank`, `ranks`, `devices` or `versions`, which then may differ.
    """
    here = surroundings()
    found = []
    if saved["rank"] != here["rank"] and "rank" not in allow:
        found.append(f"it is of rank {saved['rank']}, and this is rank {here['rank']} (rank)")
    if saved["ranks"] != here["ranks"] and "ranks" not in allow:
        found.append(f"it is of a run with {saved['ranks']} ranks, and here are {here['ranks']} (ranks)")
    for kind in sorted({*saved["devices"], *here["devices"]}):
        counts = saved["devices"].get(kind, 0), here["devices"].get(kind, 0)
        if counts[0] != counts[1] and "devices" not in allow:
            found.append(f"there were {counts[0]} devices of kind {kind}, and here are {counts[1]} (devices)")
    for name, version in saved["versions"].items():
        # What is not imported yet will be, when its part of the state is put back.
        present = here["versions"].get(name, version)
        if present != version and "versions" not in allow:
            found.append(f"it was captured with {name} {version}, and here is {present} (versions)")
    return found


def refusal(reasons: list[str]) -> StateError:
    """The error that says why a state does not fit.

    Args:
        reasons: What was found, in words.
    """
    return StateError(
        "state-unfit",
        f"The state does not fit here, so nothing was put back: {'; '.join(reasons)}. A run that went on from it would not have "
        "the bits of the one that was saved. Resume as it was saved, or name what may differ: restore(state, "
        'allow=["versions"], ...).',
    )
