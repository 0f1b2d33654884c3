"""Determinism in PyTorch outside of recording: settings and generators, on the CPU and on all devices; data loaders; and the copies of
tensors and generators that `determinism.check(fn)` restores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import Sampler, get_worker_info

from determinism.frameworks.snapshots import Contents, Order
from determinism.import_hook import after_import
from determinism.run_spec import FactorRequest
from determinism.seeds import Streams, seed_numpy, seed_python

_STATELESS: tuple[type[Any], ...] = (
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme, torch.finfo, torch.iinfo),
    *(torch.Stream, torch.Event),
)
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """The states of the default generators, by device type; None for a device that was not in use yet."""

    cpu: torch.Tensor
    devices: dict[str, list[torch.Tensor] | None]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hide copying and restoring from autograd and from everything that watches ops."""
    with torch.no_grad(), _disable_current_modes():
        yield


def capture_generators() -> GeneratorStates:
    """Copy the states of the default generators of every device in use."""
    devices: dict[str, list[torch.Tensor] | None] = {}
    for name, module in _device_modules():
        in_use = module.is_initialized()
        devices[name] = [_on_cpu(state) for state in module.get_rng_state_all()] if in_use else None
    if torch.backends.mps.is_available():
        devices["mps"] = [_on_cpu(torch.mps.get_rng_state())]
    return GeneratorStates(torch.get_rng_state().clone(), devices)


def restore_generators(states: GeneratorStates | None) -> None:
    """Restore the default generators; those first used since the capture are reset to their seeds."""
    if states is None:
        torch.default_generator.manual_seed(torch.default_generator.initial_seed())
        states = GeneratorStates(torch.default_generator.get_state(), {})
    torch.set_rng_state(states.cpu)
    for name, module in _device_modules():
        if not module.is_initialized():
            continue
        saved = states.devices.get(name)
        if saved is not None:
            module.set_rng_state_all(saved)
            continue
        for generator in module.default_generators:
            generator.manual_seed(generator.initial_seed())
    mps = states.devices.get("mps")
    if mps is not None:
        torch.mps.set_rng_state(mps[0])


def contents_of(thing: Any) -> list[Contents] | None:
    """Return what a tensor, storage or generator holds; None for anything else."""
    if isinstance(thing, torch.Tensor):
        return _tensor_contents(thing)
    if isinstance(thing, torch.Generator):
        state = thing.get_state().clone()
        return [Contents(lambda: thing.set_state(state))]
    if isinstance(thing, torch.UntypedStorage):
        return [_storage_contents(thing)]
    if isinstance(thing, torch.TypedStorage):
        return [Contents(children=[("_untyped_storage", thing._untyped_storage)])]
    return [] if isinstance(thing, _STATELESS) else None


def _tensor_contents(tensor: torch.Tensor) -> list[Contents]:
    link = _link_contents(tensor)
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return [link, Contents(children=[(name, getattr(tensor, name)) for name in names])]
    if tensor.layout in _COMPRESSED:
        return [link, _compressed_contents(tensor)]
    if tensor.layout is not torch.strided or tensor.is_nested:
        # Sparse, nested or another layout: there is no single storage.
        copied = tensor.detach().clone()
        return [link, Contents(lambda: setattr(tensor, "data", copied.clone()), order=Order.ATTRIBUTES)]
    return [link, _view_contents(tensor), Contents(children=[("untyped_storage()", tensor.untyped_storage())])]


def _storage_contents(storage: torch.UntypedStorage) -> Contents:
    """Copy the bytes of a storage; they are restored without autograd noticing: no version counter changes."""
    size = storage.nbytes()
    copied = None if storage.device.type == "meta" or not size else storage.clone()  # type: ignore[no-untyped-call]

    def restore() -> None:
        if storage.nbytes() != size:
            storage.resize_(size)
        if copied is not None:
            storage.copy_(copied, False)

    return Contents(restore)


def _view_contents(tensor: torch.Tensor) -> Contents:
    """Note which storage a tensor has, and how it views it."""
    alias, function = tensor.detach(), tensor.grad_fn

    def restore() -> None:
        if tensor.grad_fn is not function:
            if function is not None:
                raise RuntimeError("the graph that made it was changed, and a graph cannot be copied")
            tensor.detach_()
        if _view(tensor) != _view(alias):
            tensor.data = alias.detach()

    return Contents(restore, order=Order.ATTRIBUTES)


def _compressed_contents(tensor: torch.Tensor) -> Contents:
    """Note the memory of a compressed sparse tensor, which assigning to `data` does not replace."""

    def present() -> dict[str, torch.UntypedStorage]:
        return {name: getattr(tensor.detach(), name)().untyped_storage() for name in _COMPRESSED[tensor.layout]}

    storages = present()

    def restore() -> None:
        now = present()
        if any(now[name]._cdata != storage._cdata for name, storage in storages.items()):
            raise RuntimeError("other memory was put into a sparse tensor")

    return Contents(restore, storages.items())


def _link_contents(tensor: torch.Tensor) -> Contents:
    """Note a tensor's gradient, hooks and `requires_grad`."""
    requires_grad = tensor.requires_grad
    all_hooks = {name: getattr(tensor, name, None) for name in _HOOKS if tensor.is_leaf}
    has_gradient = tensor.is_leaf or tensor.retains_grad
    gradient = tensor.grad if has_gradient else None

    def restore() -> None:
        if tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)
        if has_gradient and tensor.grad is not gradient:
            tensor.grad = gradient
        for name, hooks in all_hooks.items():
            if getattr(tensor, name, None) is not hooks:
                setattr(tensor, name, hooks)

    return Contents(restore, [("grad", gradient), *all_hooks.items()], order=Order.HASHED)


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
    return (*place, tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


def _device_modules() -> Iterator[tuple[str, ModuleType]]:
    for name in ("cuda", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            yield name, module


def _on_cpu(state: torch.Tensor) -> torch.Tensor:
    return state.detach().cpu().clone()


# Fixes or perturbs the factors of an experiment that PyTorch controls.

_DELAYS = (0.0, 0.02, 0.005, 0.03, 0.0, 0.01)


def start(request: FactorRequest) -> None:
    """Fix or perturb the requested factors, right after PyTorch was imported."""
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
        """Ignore the program's choice; the experiment requires deterministic algorithms."""

    torch.use_deterministic_algorithms = keep


def _compute_with_one_thread() -> None:
    torch.set_num_threads(1)

    def keep(nthreads: int) -> None:
        """Ignore the program's choice; the experiment requires one thread."""

    torch.set_num_threads = keep


def _receive_in_turn() -> None:
    """Make a receive without a source take from the other ranks of its group in turn, beginning with the first.

    If ranks do not send equally often, a receive waits forever, and the run is stopped without a result.
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


# Converts PyTorch's tensors and generator states to and from the forms of a saved state.

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def generator_states() -> dict[str, Any]:
    """Return the states of the default generators of every device; None for a device not in use yet."""
    with undisturbed():
        states = capture_generators()
    return {"cpu": states.cpu, "devices": dict(states.devices)}


def restore_generator_states(states: dict[str, Any]) -> None:
    """Restore the states; devices that were in use then are initialized."""
    for name, module in _device_modules():
        if states["devices"].get(name) is not None:
            module.init()
            # There may be fewer devices now, if that was allowed.
            states["devices"][name] = states["devices"][name][: module.device_count()]
    with undisturbed():
        restore_generators(GeneratorStates(states["cpu"], states["devices"]))


def rank() -> tuple[int, int] | None:
    """Return this process's rank and the size of the process group; None without a group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def devices() -> dict[str, int]:
    """Count the devices, by type."""
    return {name: int(module.device_count()) for name, module in _device_modules()}


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Return the kind and state of a generator; None if `thing` is not a generator."""
    if not isinstance(thing, torch.Generator):
        return None
    with undisturbed():
        return f"torch.Generator on {thing.device.type}", thing.get_state().clone()


def put_back(thing: torch.Generator, state: torch.Tensor) -> None:
    """Set a generator's state."""
    with undisturbed():
        thing.set_state(state)


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """Copy a dense tensor to an array; None if `thing` is not a plain tensor with contiguously storable elements."""
    if type(thing) not in _PLAIN or thing.layout is not torch.strided or thing.is_quantized or thing.is_nested:
        return None
    with undisturbed():
        copy = thing.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()
        try:
            return copy.numpy(), {}
        except TypeError:
            # NumPy lacks the dtype, for example bfloat16.
            described = {"dtype": str(copy.dtype).removeprefix("torch."), "shape": list(copy.shape)}
            return copy.reshape(-1).view(torch.uint8).numpy(), described


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> torch.Tensor:
    """Make the tensor that `to_array` converted to this array and description, on the CPU.

    Raises:
        ValueError: The description does not name a numeric type.
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
    """Return no gaps: compiled graphs, too, draw from the default generators."""
    return []


_STATE_WORDS = 624
"""State words of the Mersenne Twister that draws on the CPU."""
_STATE_BEGIN = 24
"""Byte offset of the words in its state; each takes eight bytes."""


def seed(streams: Streams) -> None:
    """Seed the default generators; a device not in use yet is seeded when it is initialized."""
    fill(torch.default_generator, streams, "default")
    for name, module in _device_modules():
        for index in range(module.device_count()):
            value = streams.integer("torch", name, index, bits=64)
            # Runs now if the device is initialized, else upon initialization, after any calls queued before.
            module._lazy_call(partial(_seed_device, module, index, value))
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(streams.integer("torch", "mps", bits=63))


def _seed_device(module: Any, index: int, value: int) -> None:
    module.default_generators[index].manual_seed(value)


def generator(streams: Streams, name: str, device: str = "cpu") -> torch.Generator:
    """Make a generator with its own stream.

    Args:
        streams: The streams of its place in the program.
        name: Distinguishes it from others.
        device: The device that it draws on.
    """
    made = torch.Generator(device)
    fill(made, streams, name)
    return made


def fill(generator: torch.Generator, streams: Streams, name: str) -> None:
    """Seed one generator.

    `manual_seed` of a CPU generator uses only 32 of its 64 bits (ATen/core/MT19937RNGEngine.h), so two of 65,000 streams
    would be the same with a probability of 0.4. Therefore its state words are written as well; `initial_seed` stays.
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
        # A version with another state format: only the seed can be set.
        return
    filled = torch.tensor(words, dtype=torch.int64)
    # An all-zero state yields only zeros; of the first word, only the highest bit is used.
    filled[0] |= 0x80000000
    state[_STATE_BEGIN : _STATE_BEGIN + 8 * _STATE_WORDS] = filled.view(torch.uint8)
    generator.set_state(state)


def _holds_expansion(words: torch.Tensor, seed: int) -> bool:
    """Whether the words are a Mersenne Twister's expansion of a 32-bit seed."""
    first, second = words[:2].tolist()
    return first == seed and second == (1812433253 * (seed ^ (seed >> 30)) + 1) & 0xFFFFFFFF


def capture() -> Callable[[], None]:
    """Capture the states of the default generators; returns a function that restores them."""
    states = capture_generators()
    return lambda: restore_generators(states)


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """Return a function that seeds a PyTorch generator registered under a name; None if the thing is not one."""
    if not isinstance(thing, torch.Generator):
        return None
    return lambda streams: fill(thing, streams, name)


# Loader workers and the order of samples.


def seed_worker(streams: Streams, worker: int) -> Streams:
    """Seed the generators of a worker process; called in it.

    The loader's seed for this epoch goes into the streams. So two epochs differ even if the program does not declare a
    new one, and they repeat if the loader's generator does.

    Args:
        streams: The streams of the place where the iteration of the loader began.
        worker: Number of the worker.

    Returns:
        The worker's streams.
    """
    information = get_worker_info()
    drawn = information.seed - worker if information is not None else 0
    # How many processes were started before does not go into them, as that number differs in a resumed run.
    own = streams.moved(worker=worker, process=f"loader {drawn}")
    seed_python(own)
    seed_numpy(own)
    fill(torch.default_generator, own, "default")
    return own


class EpochSampler(Sampler[int]):
    """Shuffles a data set in each epoch, depending only on the master seed and the number of the epoch.

    Earlier epochs do not matter, so a resumed run has the same order as the full one. With several ranks, each takes
    its part of the common order; the last ranks repeat samples from its beginning so that all have the same number.
    """

    def __init__(self, data: Sized, place: Any, *, rank: int = 0, ranks: int = 1, name: str = "sampler") -> None:
        """Take the data set.

        Args:
            data: The data set, for its length.
            place: Has the `streams` of the program's current place.
            rank: Which part to take.
            ranks: The number of parts.
            name: Distinguishes it from others.
        """
        self._data = data
        self._place = place
        self._rank, self._ranks = rank, ranks
        self._name = name
        self._skipped = 0

    def __len__(self) -> int:
        return -(-len(self._data) // self._ranks) - self._skipped

    def __iter__(self) -> Iterator[int]:
        streams: Streams = self._place.streams.shared.moved(worker=None)
        order = torch.randperm(len(self._data), generator=generator(streams, self._name)).tolist()
        padded = order + order[: -len(order) % self._ranks]
        skipped, self._skipped = self._skipped, 0
        yield from padded[self._rank :: self._ranks][skipped:]

    def skip(self, samples: int) -> None:
        """Skip the first samples of the next epoch, which the run had consumed before it was saved.

        Args:
            samples: How many to skip.
        """
        self._skipped = samples
