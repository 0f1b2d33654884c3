"""Which version of a framework is installed, without importing it."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path

from determinism.knowledge.framework import Framework

CONTAINER_VARIABLE = "NVIDIA_TENSORFLOW_VERSION"
"""Set within NVIDIA's containers, to the version of the container."""


def installed_version(framework: Framework) -> str | None:
    """The version that a Python started like this one would import; None if it is not installed.

    The names of the folders that installers leave say it. The module `importlib.metadata` reads the same, but takes longer to
    load than the command that asks may take.
    """
    if framework.identifier == "ngc-tensorflow":
        return os.environ.get(CONTAINER_VARIABLE)
    if framework.identifier == "python":
        return ".".join(map(str, sys.version_info[:3]))
    for distribution in framework.distributions:
        version = _versions(tuple(sys.path)).get(_normalized(distribution))
        if version is not None:
            return version
    return None


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _versions(places: tuple[str, ...]) -> dict[str, str]:
    """Every installed distribution and its version; of two with the same name, the one that is imported."""
    found: dict[str, str] = {}
    for place in places:
        try:
            names = os.listdir(Path(place or "."))
        except OSError:
            continue
        for name in names:
            stem, dot, ending = name.rpartition(".")
            distribution, dash, version = stem.partition("-")
            if ending in ("dist-info", "egg-info") and dot and dash:
                found.setdefault(_normalized(distribution), version.partition("-py")[0])
    return found
