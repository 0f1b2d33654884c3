"""Enables determinism in PyTorch, and seeds its generators on the CPU and on every device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from determinism.frameworks.torch.snapshot import GeneratorStates, capture_generators, restore_generators, undisturbed
from determinism.import_hook import after_import
from determinism.run_spec import FactorRequest
from determinism.seeds import Streams

# Fixes or perturbs the factors of an experiment that PyTorch decides.

_DELAYS = (0.0, 0.02, 0.005, 0.03, 0.0, 0.01)


def start(request: FactorRequest) -> None:
    """Do what is asked for; PyTorch was just imported.

    Args:
        request: The factors.
    """
    if request.is_fixed("torch-seed"):
        torch.manual_seed(0)
    if request.is_fixed("threads"):
        _compute_with_one_thread()
    if request.is_fixed("deterministic-algorithms"):
        _use_deterministic_algorithms()
    if request.is_fixed("arrivals"):
        after_import("torch.distributed", lambda _: _receive_in_turn(), lambda _: None)
    if request.is_fixed("workers"):
        _load_without_workers()
    elif request.is_perturbed("workers"):
        _delay_workers(request.number)


def _use_deterministic_algorithms() -> None:
    # Filling memory is a factor of its own.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)

    def keep(mode: bool, *, warn_only: bool = False) -> None:
        """The program asks for something else; the experiment is about deterministic algorithms."""

    torch.use_deterministic_algorithms = keep


def _compute_with_one_thread() -> None:
    torch.set_num_threads(1)

    def keep(nthreads: int) -> None:
        """The program asks for another number; the experiment is about one thread."""

    torch.set_num_threads = keep


def _receive_in_turn() -> None:
    """Let a receive without a source take from each other rank of its group in turn, from the first on.

    Where ranks do not send equally often one waits for ever, and the run is stopped without a result.
    """
    distributed: Any = torch.distributed
    turns: dict[int, int] = {}

    def in_turn(receive: Callable[..., Any]) -> Callable[..., Any]:
        def received(tensor: Any, src: Any = None, group: Any = None, *args: Any, **kwargs: Any) -> Any:
            if src is None and kwargs.get("group_src") is None:
                others = list(distributed.get_process_group_ranks(group or distributed.group.WORLD))
                others.remove(distributed.get_rank())
                turn = turns.get(id(group), 0)
                turns[id(group)] = turn + 1
                src = others[turn % len(others)]
            return receive(tensor, src, group, *args, **kwargs)

        return received

    for name in ("recv", "irecv"):
        if hasattr(distributed, name):
            setattr(distributed, name, in_turn(getattr(distributed, name)))


def _load_without_workers() -> None:
    from torch.utils.data import DataLoader

    make = DataLoader.__init__

    def make_without_workers(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 4:
            args = (*args[:4], 0, *args[5:])
        else:
            kwargs["num_workers"] = 0
        for name in ("prefetch_factor", "multiprocessing_context", "worker_init_fn"):
            kwargs.pop(name, None)
        kwargs["persistent_workers"] = False
        kwargs["timeout"] = 0
        make(self, dataset, *args, **kwargs)

    DataLoader.__init__ = make_without_workers  # type: ignore[method-assign]


def _delay_workers(number: int) -> None:
    from torch.utils.data._utils import fetch

    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(fetch, name)
        kind.fetch = _delayed(kind.fetch, number)


def _delayed(run: Callable[..., Any], number: int) -> Callable[..., Any]:
    count = iter(range(1 << 62))

    def run_late(self: Any, indices: Any) -> Any:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            time.sleep(_DELAYS[(next(count) * (number + 1) + worker.id * (number + 3) + number) % len(_DELAYS)])
        return run(self, indices)

    return run_late


# PyTorch's tensors and generator states in the forms that a saved state has.

_PLAIN = (
    (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if hasattr(torch.nn, "Buffer")
    else (torch.Tensor, torch.nn.Parameter)
)
_DEVICES = ("cuda", "xpu")


def generator_states() -> dict[str, Any]:
    """The states of the default generators of every device; None for a device that is not in use yet."""
    with undisturbed():
        states = capture_generators()
    return {"cpu": states.cpu, "devices": dict(states.devices)}


def restore_generator_states(states: dict[str, Any]) -> None:
    """Put them back; devices that were in use are put into use."""
    for name in _DEVICES:
        module = getattr(torch, name, None)
        if states["devices"].get(name) is not None and module is not None and module.is_available():
            module.init()
            # Fewer devices than there were, if that was allowed.
            states["devices"][name] = states["devices"][name][: module.device_count()]
    with undisturbed():
        restore_generators(GeneratorStates(states["cpu"], states["devices"]))


def rank() -> tuple[int, int] | None:
    """Number of this process in the process group, and how many there are; None without a group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def devices() -> dict[str, int]:
    """How many devices there are, by kind."""
    found = {}
    for name in _DEVICES:
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            found[name] = int(module.device_count())
    return found


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Kind and state of a generator; None if `thing` is none."""
    if not isinstance(thing, torch.Generator):
        return None
    with undisturbed():
        return f"torch.Generator on {thing.device.type}", thing.get_state().clone()


def put_back(thing: torch.Generator, state: torch.Tensor) -> None:
    """Give a generator a state."""
    with undisturbed():
        thing.set_state(state)


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of a dense tensor as an array; None if `thing` is no tensor, or one whose bytes do not lie in one piece of memory."""
    if type(thing) not in _PLAIN or thing.layout is not torch.strided or thing.is_quantized or thing.is_nested:
        return None
    with undisturbed():
        copy = thing.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()
        try:
            return copy.numpy(), {}
        except TypeError:
            # NumPy has no such numbers, bfloat16 for instance.
            described = {"dtype": str(copy.dtype).removeprefix("torch."), "shape": list(copy.shape)}
            return copy.reshape(-1).view(torch.uint8).numpy(), described


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> torch.Tensor:
    """The tensor, on the CPU.

    Args:
        array: What `to_array` gave.
        description: What came with it.

    Raises:
        ValueError: It names no type of numbers.
    """
    with undisturbed():
        tensor = torch.from_numpy(array.copy(order="C"))
        if "dtype" not in description:
            return tensor
        dtype = getattr(torch, description["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{description['dtype']!r} is not a numeric type")
        if not tensor.numel():
            return torch.empty(description["shape"], dtype=dtype)
        return tensor.view(dtype).reshape(description["shape"])


def gaps() -> list[str]:
    """Nothing is missing: graphs that were compiled draw from the default generators."""
    return []


_ACCELERATORS = ("cuda", "xpu")
_STATE_WORDS = 624
"""Of the Mersenne Twister that draws on the CPU."""
_STATE_BEGIN = 24
"""Byte of its state where the words begin, each in eight bytes."""


def seed(streams: Streams) -> None:
    """Seed the default generators; a device that is not in use yet is seeded when it comes into use."""
    fill(torch.default_generator, streams, "default")
    for name in _ACCELERATORS:
        module = getattr(torch, name, None)
        if module is None or not module.is_available():
            continue
        for index in range(module.device_count()):
            value = streams.integer("torch", name, index, bits=64)
            # Runs now if the device is in use, else when it comes into use: after whatever was asked for before.
            module._lazy_call(lambda module=module, index=index, value=value: _seed_device(module, index, value))
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(streams.integer("torch", "mps", bits=63))


def _seed_device(module: Any, index: int, value: int) -> None:
    module.default_generators[index].manual_seed(value)


def generator(streams: Streams, name: str, device: str = "cpu") -> torch.Generator:
    """A generator with a stream of its own.

    Args:
        streams: The place that it draws for.
        name: Tells it from others.
        device: Where it draws.
    """
    made = torch.Generator(device)
    fill(made, streams, name)
    return made


def fill(generator: torch.Generator, streams: Streams, name: str) -> None:
    """Seed one generator.

    `manual_seed` of a CPU generator keeps 32 of its 64 bits (ATen/core/MT19937RNGEngine.h), so two of 65,000 streams would be
    the same with a probability of 0.4. Therefore the words of its state are written as well; the seed that it names stays.

    Args:
        generator: The generator.
        streams: The place that it draws for.
        name: Tells it from others.
    """
    device = generator.device
    names = ("torch", device.type, device.index or 0, name)
    value = streams.integer(*names, bits=64)
    generator.manual_seed(value)
    if device.type == "cpu":
        with undisturbed():
            _fill_state(generator, value & 0xFFFFFFFF, streams.words(*names, "state", count=_STATE_WORDS))


def _fill_state(generator: torch.Generator, seed: int, words: list[int]) -> None:
    state = generator.get_state()
    present = state[_STATE_BEGIN : _STATE_BEGIN + 8 * _STATE_WORDS].clone()
    if present.numel() != 8 * _STATE_WORDS or not _holds_expansion(present.view(torch.int64), seed):
        # A version that keeps its state otherwise; its seed is all there is to set.
        return
    filled = torch.tensor(words, dtype=torch.int64)
    # The twister gives nothing but zeros from a state of zeros; its first word counts with its highest bit only.
    filled[0] |= 0x80000000
    state[_STATE_BEGIN : _STATE_BEGIN + 8 * _STATE_WORDS] = filled.view(torch.uint8)
    generator.set_state(state)


def _holds_expansion(words: torch.Tensor, seed: int) -> bool:
    """Whether the words are what a Mersenne Twister makes of a seed of 32 bits."""
    first, second = words[:2].tolist()
    return first == seed and second == (1812433253 * (seed ^ (seed >> 30)) + 1) & 0xFFFFFFFF


def capture() -> Callable[[], None]:
    """Note the states of the default generators.

    Returns:
        What puts them back.
    """
    states = capture_generators()
    return lambda: restore_generators(states)


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """What seeds a generator of PyTorch's; None if the thing is none.

    Args:
        thing: What was registered.
        name: Under which name.
    """
    if not isinstance(thing, torch.Generator):
        return None
    return lambda streams: fill(thing, streams, name)
