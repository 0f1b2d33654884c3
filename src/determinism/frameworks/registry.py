"""The supported frameworks, and for each purpose the name and interface of their modules.

Every Python process of a recorded program loads this at its start, so it imports nothing at all.
"""

from __future__ import annotations

RECORDERS = {
    "torch": "determinism.frameworks.torch.session",
    "tensorflow": "determinism.frameworks.tensorflow.session",
    "jax": "determinism.frameworks.jax.session",
}
"""For each framework, the module with `Session(folders, spec)`, a recording; see `frameworks/session.py`."""

ROW_RECORDERS = ("torch", "jax")
"""Frameworks whose recorder can examine the rows of batches."""

ENABLERS = {
    "torch": "determinism.frameworks.torch.settings",
    "tensorflow": "determinism.frameworks.tensorflow.enable",
    "jax": "determinism.frameworks.jax.enable",
}
"""For each framework, the module with `CONTROLS`, the settings that can be read and written, and `has_begun(moment)`."""

PATCHERS = {
    "torch": "determinism.frameworks.torch.patches.catalogue",
    "tensorflow": "determinism.frameworks.tensorflow.patches",
}
"""For each framework, the module with `apply()`, which replaces ops and returns `ReplacedOps`."""

OP_AUDITS = {
    "torch": "determinism.audit.torch",
    "tensorflow": "determinism.audit.tensorflow",
    "jax": "determinism.audit.jax",
}
"""For each framework, the module that measures its ops: reads a request on standard input, and writes a line per case."""

NO_DETERMINISTIC_MODE = {("jax", "cpu")}
"""Frameworks and devices without a deterministic mode: their ops are measured without one."""

EPOCH_CALLBACKS = {"keras": "determinism.frameworks.tensorflow.keras_callback"}
"""For each library, the module with `ReseedEachEpoch`."""

STATES = {
    "torch": "determinism.frameworks.torch.enable",
    "tensorflow": "determinism.frameworks.tensorflow.enable",
    "jax": "determinism.frameworks.jax.enable",
    "cupy": "determinism.frameworks.cupy",
}
"""For each framework, the module that handles its state.

Each seeds generators (`seed(streams)`, `capture()`, `reseeder(thing, name)`) and converts tensors and generator states for saved states.
PyTorch's also has `seed_worker(streams, worker)` and `EpochSampler`.
"""

SNAPSHOTS = ("torch", "tensorflow", "jax")
"""Frameworks whose module in `STATES` copies values and generators, so that a function can be called again from the same state."""

FACTORS = {
    "torch": "determinism.frameworks.torch.enable",
    "tensorflow": "determinism.frameworks.tensorflow.enable",
}
"""For each framework, the module with `start(request)`, which fixes factors of an experiment or perturbs them."""


_HELPER_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_HELPER_SCRIPTS = ("/bin/torchrun", "/torch/_inductor/compile_worker/__main__.py")


def is_helper(arguments: list[str]) -> bool:
    """Whether this Python serves the framework (torchrun's agent, a compile worker) instead of running the program."""
    for index, argument in enumerate(arguments[1:], start=1):
        if argument == "-m":
            return arguments[index + 1 : index + 2] in [[name] for name in _HELPER_MODULES]
        if not argument.startswith("-"):
            return argument.endswith(_HELPER_SCRIPTS)
    return False
