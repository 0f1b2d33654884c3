"""How busy the machine is, and what a process has used of it. Fixed, each number is one that is the same everywhere."""

from __future__ import annotations

from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

SOURCE = "machine-state"

_BYTES = 1 << 33
"""In the place of any whole number: most are bytes of memory, and who is told of too few does something else."""


def _state(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result = _constant(result)
    use.note(lambda: repr(result))
    return result


def _constant(value: Any) -> Any:
    """A value of the same types, whose numbers are the same in every run."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return type(value)(_BYTES if isinstance(value, int) else 1)
    if isinstance(value, tuple):
        parts = [_constant(part) for part in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, list):
        return [_constant(part) for part in value]
    if isinstance(value, dict):
        return {key: _constant(part) for key, part in value.items()}
    return value


FUNCTIONS = (
    *functions(SOURCE, _state, "os", "getloadavg times"),
    *functions(SOURCE, _state, "resource", "getrusage"),
    *functions(SOURCE, _state, "psutil", "cpu_percent cpu_times cpu_times_percent cpu_freq cpu_stats getloadavg"),
    *functions(SOURCE, _state, "psutil", "virtual_memory swap_memory disk_io_counters net_io_counters boot_time"),
    *functions(
        SOURCE, _state, "psutil", "Process.cpu_percent Process.cpu_times Process.memory_info Process.memory_percent"
    ),
    *functions(SOURCE, _state, "psutil", "Process.memory_full_info Process.num_threads Process.create_time"),
)
