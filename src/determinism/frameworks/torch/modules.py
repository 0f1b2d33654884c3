"""Modules: which one is being called, by its path below the outermost one; the tensors that modules and optimizers hold; and the ledger of
each step's batches, loss and held tensors, with one digest per group.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch

from determinism.sites import NO_STACK, Waiting
from determinism.trace.ledger import LedgerWriter, form_text, group_digest
from determinism.trace.schema import Layout
from determinism.trace.spool import PendingDigest, resolved_digest
from determinism.types import Role

# Maps a node of the autograd graph to the forward op that made it.
#
# The node counter is per thread. At dispatch it is already one past the node that the op belongs to. The first record
# that sees the counter move owns the node: later records with the same counter are parts of the same op.

_MOST_LINKS = 200_000
_MOST_SKIPPED = 8
sequence_number = torch.autograd._get_sequence_nr


@dataclass(slots=True)
class Link:
    """The forward side of a node."""

    record: int
    """Number of the record; -1 for a view, which has none."""
    stack: int
    module: int


NO_MODULE = -1
NOWHERE = Link(-1, NO_STACK, NO_MODULE)


class ForwardLinks:
    """The links of the recorded thread. Two generations are kept, so that memory stays bounded over steps."""

    def __init__(self) -> None:
        self.last = -1
        """The counter when the last link was made."""
        self.newest: Link | None = None
        """The last link made."""
        self.wrote_view: Link | None = None
        """Set by a record that wrote into a view, until the next link."""
        self._new: dict[int, Link] = {}
        self._old: dict[int, Link] = {}

    def add(self, sequence: int, link: Link) -> None:
        """Note that the counter moved to `sequence` during the op of this link.

        Skipped numbers belong to nodes made without a recorded op: by this op before its first record, or, after a
        write into a view, by that write (`CopySlices` and the recreated view).
        """
        if self.last != sequence - 1:
            self._add_skipped(sequence, link)
        self.last = sequence
        self.newest = link
        self.wrote_view = None
        self._new.setdefault(sequence - 1, link)
        if len(self._new) >= _MOST_LINKS:
            self.age()

    def _add_skipped(self, sequence: int, link: Link) -> None:
        skipped = range(max(self.last, sequence - 1 - _MOST_SKIPPED), sequence - 1) if self.last >= 0 else ()
        for index, number in enumerate(skipped):
            after_write = self.wrote_view is not None and index < 2
            self._new.setdefault(number, self.wrote_view if after_write and self.wrote_view else link)

    def of(self, sequence: int) -> Link:
        """Return the link of a node."""
        return self._new.get(sequence) or self._old.get(sequence) or NOWHERE

    def age(self) -> None:
        """Forget links from before the step that just ended."""
        self._old, self._new = self._new, {}


class Call(Waiting):
    """A module call that has not returned."""

    __slots__ = ("link", "module", "token")

    def __init__(self, frame: FrameType, module: torch.nn.Module, link: Link) -> None:
        # Without `super`, for speed: this runs at every module call.
        self.frame = frame
        self.outside = None
        self.module = module
        self.link = link
        """The link of the ops in this call, with the number of the module's path."""
        self.token = object()
        """Identifies this call; keeping a reference to it keeps nothing else alive."""


class _Root:
    """The known modules below an outermost one. Ids can be reused, so each is stored with a weak reference."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.reference = weakref.ref(module)
        self.links: dict[int, tuple[weakref.ref[torch.nn.Module], Link]] = {}
        """The links of the modules that were called."""
        self.names: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}

    def name(self, module: torch.nn.Module) -> str:
        """Return the path of a module, or its class name if it is not registered below the root."""
        found = self.names.get(id(module))
        if found is None or found[0]() is not module:
            root = self.reference()
            named = root.named_modules() if root is not None else ()
            self.names = {id(child): (weakref.ref(child), name) for name, child in named}
            found = self.names.get(id(module))
        return found[1] if found is not None and found[0]() is module else f"<{type(module).__name__}>"


class ModulePaths:
    """Follows the module calls of one thread."""

    def __init__(self, number: Callable[[str], int]) -> None:
        """Take the function that returns the number of a path."""
        self.number = number
        self.calls: list[Call] = []
        """The active calls, outermost first."""
        self._roots: dict[int, _Root] = {}

    def enter(self, module: torch.nn.Module, frame: FrameType) -> None:
        """Note a module call from a frame that waits for its return."""
        calls = self.calls
        outermost = calls[0].module if calls else module
        root = self._roots.get(id(outermost))
        if root is None or root.reference() is not outermost:
            root = self._roots[id(outermost)] = _Root(outermost)
        known = root.links.get(id(module))
        if known is None or known[0]() is not module:
            link = Link(-1, NO_STACK, self.number(root.name(module)))
            known = root.links[id(module)] = (weakref.ref(module), link)
        calls.append(Call(frame, module, known[1]))

    def roots(self) -> list[torch.nn.Module]:
        """Return every living module that was called as the outermost one, ordered by first call."""
        for key in [key for key, root in self._roots.items() if root.reference() is None]:
            del self._roots[key]
        return [module for root in self._roots.values() if (module := root.reference()) is not None]

    def leave(self, module: torch.nn.Module) -> None:
        """Note that a module returned or raised; this also removes inner calls whose end was never reported."""
        calls = self.calls
        if calls and calls[-1].module is module:
            del calls[-1]
            return
        for index in range(len(calls) - 1, -1, -1):
            if calls[index].module is module:
                del calls[index:]
                return


# What a program keeps: parameters, gradients, buffers and optimizer state, with their names.


class Held(NamedTuple):
    """One tensor that the program keeps."""

    kind: str
    """`parameter`, `gradient`, `buffer` or `optimizer state`."""
    name: str
    tensor: torch.Tensor


_WALKS = ("named_parameters", "named_buffers", "named_modules", "_named_members")
"""Methods that a class may override to change what is below it."""


class _Walk:
    """The modules below an outermost one with the names of their tensors, so that the tree is not walked in every step.

    Keeps nothing alive: the walk becomes invalid when a module is gone or its children have changed.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._modules: list[tuple[weakref.ref[torch.nn.Module], tuple[int, ...], str, dict[str, str]]] = []
        self.is_plain = all(getattr(type(root), name) is getattr(torch.nn.Module, name) for name in _WALKS)
        for name, module in root.named_modules() if self.is_plain else ():
            prefix = f"{name}." if name else ""
            self._modules.append((weakref.ref(module), _children(module), prefix, {}))
        self.references = [reference for reference, *_ in self._modules]

    def key(self) -> list[Any] | None:
        """Return a key that changes whenever the tensors or names below the outermost module do; None if invalid."""
        key: list[Any] = []
        for reference, children, _, _ in self._modules:
            module = reference()
            if module is None or _children(module) != children:
                return None
            for held in (module._parameters, module._buffers):
                key += held
                key += map(id, held.values())
                key.append(None)
        return key

    def tensors(self) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]] | None:
        """Return parameters and buffers as `named_parameters` and `named_buffers` do, each once; None if invalid."""
        parameters: list[tuple[str, torch.Tensor]] = []
        buffers: list[tuple[str, torch.Tensor]] = []
        seen: set[int] = set()
        for reference, children, prefix, names in self._modules:
            module = reference()
            if module is None or _children(module) != children:
                return None
            for held, found in ((module._parameters, parameters), (module._buffers, buffers)):
                for key, tensor in held.items():
                    if tensor is not None and id(tensor) not in seen:
                        seen.add(id(tensor))
                        found.append((names.get(key) or names.setdefault(key, prefix + key), tensor))
        return parameters, buffers


def _children(module: torch.nn.Module) -> tuple[int, ...]:
    return tuple(map(id, module._modules.values()))


class HeldNow:
    """Everything that the program keeps at one moment, or a part of it."""

    def __init__(self, names: Sequence[tuple[str, str]], tensors: Sequence[torch.Tensor]) -> None:
        """Take the tensors, with their kinds and names.

        Args:
            names: The kind and the name of each tensor; the same object as before if they are easily seen to be the
                same.
            tensors: The tensors.
        """
        self.names = names
        self.tensors = tensors

    @classmethod
    def of(cls, held: Sequence[Held]) -> HeldNow:
        """Make one of the given tensors."""
        return cls([(one.kind, one.name) for one in held], [one.tensor for one in held])

    def __iter__(self) -> Iterator[Held]:
        return (Held(*name, tensor) for name, tensor in zip(self.names, self.tensors, strict=True))

    def __len__(self) -> int:
        return len(self.tensors)


class _Known:
    """The held tensors except gradients, as last enumerated; valid while the key is the same and all are alive."""

    def __init__(self, key: list[Any] | None, held: Sequence[Held]) -> None:
        self.key = key
        self._names = [(one.kind, one.name) for one in held]
        self._references = [weakref.ref(one.tensor) for one in held]
        self._parameters = [place for place, one in enumerate(held) if one.kind == "parameter"]
        self._last_names: tuple[list[int], bool, list[tuple[str, str]]] | None = None
        """Which parameters had gradients, whether only gradients were requested, and the names."""

    def tensors(self) -> list[torch.Tensor] | None:
        """Return all the tensors; None if one is gone."""
        tensors: list[Any] = [reference() for reference in self._references]
        return None if _NONE in map(type, tensors) else tensors

    def with_gradients(self, tensors: Sequence[torch.Tensor], *, alone: bool) -> HeldNow:
        """Return what is held, with each gradient after its parameter; or only the gradients."""
        places: list[int] = []
        gradients: list[torch.Tensor] = []
        for place in self._parameters:
            if (gradient := _gradient(tensors[place])) is not None:
                places.append(place)
                gradients.append(gradient)
        last = self._last_names
        if last is None or last[:2] != (places, alone):
            of_gradients = [("gradient", self._names[place][1]) for place in places]
            names = of_gradients if alone else _each_after(self._names, places, of_gradients)
            last = self._last_names = (places, alone, names)
        return HeldNow(last[2], gradients if alone else _each_after(tensors, places, gradients))


_NONE = type(None)
_Item = TypeVar("_Item")


def _each_after(items: Sequence[_Item], places: Sequence[int], more: Sequence[_Item]) -> list[_Item]:
    """Insert each item of `more` after the item at its place; the places ascend."""
    found: list[_Item] = []
    start = 0
    for place, item in zip(places, more, strict=True):
        found += items[start : place + 1]
        found.append(item)
        start = place + 1
    found += items[start:]
    return found


Identities = Callable[[list[weakref.ref[torch.nn.Module]], list[torch.optim.Optimizer], bool], bytes | None]


def has_optimizer() -> bool:
    """Whether the program has made an optimizer. This scans all objects, so it is called only once or twice."""
    # Not `isinstance`: it reads the object's `__class__`, which makes some objects warn or import something.
    return any(torch.optim.Optimizer in type(thing).__mro__ for thing in gc.get_objects())


class HeldTensors:
    """Finds what the program keeps: through the modules that it called, its optimizers, and its leaves with gradients."""

    def __init__(self, paths: ModulePaths, identities: Identities | None = None) -> None:
        """Take the module paths.

        Args:
            paths: The modules that were called.
            identities: Makes, in one call, a key that changes whenever the tensors held by modules (as weak references)
                or optimizers (with or without their state), or their names, do; returns None if it cannot.
        """
        self._paths = paths
        self._identities = identities
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._leaves: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._walks: dict[int, tuple[weakref.ref[torch.nn.Module], _Walk]] = {}
        self._known: dict[bool, _Known] = {}
        """By whether buffers and optimizer states are included."""
        self._last_digests: set[bytes] = set()
        """Digests of the parameters at the last check for changes."""
        self._last_text: tuple[Sequence[tuple[str, str]], str] = ([], "[]")

    def _walk(self, root: torch.nn.Module) -> _Walk:
        known = self._walks.get(id(root))
        if known is None or known[0]() is not root:
            self._walks = {key: walk for key, walk in self._walks.items() if walk[0]() is not None}
            known = self._walks[id(root)] = (weakref.ref(root), _Walk(root))
        return known[1]

    def _of_root(self, root: torch.nn.Module) -> Sequence[list[tuple[str, torch.Tensor]]]:
        """Return the parameters and buffers of an outermost module, with names."""
        for _ in range(2):
            walk = self._walk(root)
            found = walk.tensors() if walk.is_plain else None
            if found is not None:
                return found
            if not walk.is_plain:
                break
            del self._walks[id(root)]
        return [*root.named_parameters()], [*root.named_buffers()]

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Add an optimizer that stepped."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def add_trained(self, outputs: Iterable[Any]) -> None:
        """Add the leaves to which a backward from these tensors gives gradients."""
        waiting = [node for output in outputs if (node := getattr(output, "grad_fn", None)) is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if isinstance(leaf := getattr(node, "variable", None), torch.Tensor):
                self.add_leaf(leaf)
            new = {next_node for next_node, _ in node.next_functions if next_node is not None} - seen
            seen |= new
            waiting += new

    def has_changed(self, digests_of: Callable[[list[torch.Tensor]], Sequence[bytes | PendingDigest]]) -> bool:
        """Whether a parameter has changed since the last call, or is gone."""
        parameters = [one.tensor for one in self.tensors() if one.kind == "parameter"]
        previous, self._last_digests = (
            self._last_digests,
            {resolved_digest(digest) for digest in digests_of(parameters)},
        )
        return not previous <= self._last_digests

    def add_leaf(self, tensor: torch.Tensor) -> None:
        """Add a leaf that was used: a tensor that requires a gradient and was not made by an op."""
        known = self._leaves.get(id(tensor))
        if known is None or known[0]() is not tensor:
            self._leaves[id(tensor)] = (weakref.ref(tensor), f"tensor of shape {tuple(tensor.shape)}")

    def tensors(self) -> HeldNow:
        """Return everything held now, each tensor once, in an order that does not vary."""
        known, tensors = self._once(with_state=True)
        return known.with_gradients(tensors, alone=False)

    def gradients(self) -> HeldNow:
        """Return the gradients of everything held now, which is faster than `tensors`."""
        known, tensors = self._once(with_state=False)
        return known.with_gradients(tensors, alone=True)

    def text(self, held: HeldNow) -> str:
        """Return the kinds and names of what is held, as JSON."""
        names, text = self._last_text
        if held.names is not names:
            if held.names != names:
                text = json.dumps(held.names)
            self._last_text = (held.names, text)
        return text

    def _once(self, *, with_state: bool) -> tuple[_Known, list[torch.Tensor]]:
        """Return each tensor other than gradients once; enumerates them only if any was added, removed or replaced."""
        key = self._key(with_state=with_state)
        known = self._known.get(with_state)
        if key is not None and known is not None and known.key == key and (tensors := known.tensors()) is not None:
            return known, tensors
        by_id: dict[int, Held] = {}
        for held in self._all(with_state=with_state):
            by_id.setdefault(id(held.tensor), held)
        found = list(by_id.values())
        known = _Known(key, found)
        if key is not None:
            self._known[with_state] = known
        return known, [one.tensor for one in found]

    def _key(self, *, with_state: bool) -> list[Any] | None:
        """Return a key that changes whenever the result of `_all` would; None if that is not known."""
        if self._identities is not None:
            walks = [self._walk(root) for root in self._paths.roots()]
            if not all(walk.is_plain for walk in walks):
                return None
            references = [reference for walk in walks for reference in walk.references]
            optimizers = [
                optimizer for reference in [*self._optimizers.values()] if (optimizer := reference()) is not None
            ]
            held = self._identities(references, optimizers, with_state)
            return None if held is None else [held, *self._leaves]
        key: list[Any] = []
        for root in self._paths.roots():
            walk = self._walk(root)
            of_root = walk.key() if walk.is_plain else None
            if of_root is None:
                return None
            key.append(id(root))
            key += of_root
        for reference in list(self._optimizers.values()):
            if (optimizer := reference()) is None:
                continue
            for group in optimizer.param_groups:
                parameters = group["params"]
                key.append(None)
                key += map(id, parameters)
                for parameter in parameters if with_state else ():
                    state = optimizer.state.get(parameter) if isinstance(parameter, torch.Tensor) else None
                    for name, value in state.items() if isinstance(state, dict) else ():
                        if isinstance(value, torch.Tensor):
                            key += (name, id(value))
        key.append(None)
        key += self._leaves
        return key

    def _all(self, *, with_state: bool = True) -> Iterator[Held]:
        named: dict[int, str] = {}
        taken: set[str] = set()
        for number, root in enumerate(self._paths.roots(), 1):
            parameters, buffers = self._of_root(root)
            names = [name for name, _ in (*parameters, *buffers)]
            # Two outermost modules, for example of a GAN, may both have a `0.weight`.
            suffix = "" if taken.isdisjoint(names) else f" of outermost module {number} ({type(root).__name__})"
            taken.update(names)
            for name, parameter in parameters:
                yield Held("parameter", named.setdefault(id(parameter), name + suffix), parameter)
            for name, buffer in buffers if with_state else ():
                yield Held("buffer", name + suffix, buffer)
        for reference in list(self._optimizers.values()):
            if (optimizer := reference()) is not None:
                yield from _of_optimizer(optimizer, named, with_state=with_state)
        for key, (leaf, name) in list(self._leaves.items()):
            if (tensor := leaf()) is not None:
                yield Held("parameter", name, tensor)
            else:
                del self._leaves[key]


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def _of_optimizer(optimizer: torch.optim.Optimizer, named: dict[int, str], *, with_state: bool) -> Iterator[Held]:
    for group_index, group in enumerate(optimizer.param_groups):
        # A named parameter is identified by its name wherever it is in the group; the others by their positions.
        for index, parameter in sorted(enumerate(group["params"]), key=lambda one: named.get(id(one[1]), "")):
            if not isinstance(parameter, torch.Tensor):
                continue
            name = named.get(id(parameter)) or f"param_groups[{group_index}].params[{index}]"
            yield Held("parameter", name, parameter)
            state = optimizer.state.get(parameter) if with_state else None
            if isinstance(state, dict):
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        yield Held("optimizer state", f"{key} of {name}", value)


_GROUPS_OF_ROLES = {Role.BATCH: "batches", Role.LOSS: "loss"}
_GROUPS_OF_KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "buffer": "buffers",
    "optimizer state": "optimizer",
}
_VALUE = form_text(None)
_MOST_FORMS = 4096


class StepLedger:
    """Collects the contents of a step, and adds a row when it ends."""

    def __init__(self, folder: Path, state_every: int) -> None:
        """Make the file.

        Args:
            folder: The folder of the process.
            state_every: Every how many steps the ledger gets everything held.

        Raises:
            OSError: The file cannot be made.
        """
        self._writer = LedgerWriter(folder, state_every)
        self._values: dict[str, list[str]] = {}
        self._held: dict[str, bytes] = {}
        self._loss: float | None = None
        self._forms: dict[tuple[torch.dtype, torch.Size], str] = {}

    def add(
        self,
        role: Role,
        tensors: Sequence[torch.Tensor],
        digests: Sequence[bytes | PendingDigest],
        plain: Sequence[bytes] = (),
    ) -> None:
        """Add a batch that arrived, or a loss from which a backward began.

        Args:
            role: Which of the two; other roles are ignored.
            tensors: Its tensors.
            digests: The digest of each tensor.
            plain: Digests of non-tensor values.
        """
        group = _GROUPS_OF_ROLES.get(role)
        if group is None:
            return
        values = self._values.setdefault(group, [])
        values += [
            f"{self._form(tensor)} {resolved_digest(digest).hex()}"
            for tensor, digest in zip(tensors, digests, strict=True)
        ]
        values += [f"{_VALUE} {digest.hex()}" for digest in plain]

    def loss(self, value: float | None) -> None:
        """Set the step's last loss, as a number."""
        self._loss = value

    def hold(self, held: HeldNow, digests: Sequence[bytes | PendingDigest]) -> dict[str, bytes]:
        """Set what the program holds at the end of the step.

        Returns:
            For each kind, one digest of all its tensors.
        """
        lines: dict[str, list[str]] = {}
        form = self._form
        for (kind, _), tensor, digest in zip(held.names, held.tensors, digests, strict=True):
            own = digest if type(digest) is bytes else resolved_digest(digest)
            if kind in lines:
                lines[kind].append(f"{form(tensor)} {own.hex()}")
            else:
                lines[kind] = [f"{form(tensor)} {own.hex()}"]
        found = {kind: group_digest(_GROUPS_OF_KINDS[kind], values) for kind, values in lines.items()}
        self._held = {_GROUPS_OF_KINDS[kind]: digest for kind, digest in found.items()}
        return found

    def end_step(self, step: int, generators: Sequence[bytes]) -> None:
        """Add the row of a step."""
        values, self._values = self._values, {}
        loss, self._loss = self._loss, None
        groups = {group: group_digest(group, lines) for group, lines in values.items() if lines}
        self._writer.add(step, {**groups, **self._held}, generators, loss)
        self._held = {}

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _form(self, tensor: torch.Tensor) -> str:
        if tensor.is_nested:
            shape: Any = tuple(size for part in tensor.unbind() for size in part.shape)
            return self._form_of(tensor.dtype, shape)
        key = (tensor.dtype, tensor.shape)
        found = self._forms.get(key)
        if found is None:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            found = self._forms[key] = self._form_of(*key)
        return found

    @staticmethod
    def _form_of(dtype: torch.dtype, shape: Sequence[int]) -> str:
        name = str(dtype).removeprefix("torch.")
        return form_text(Layout(name, tuple(shape), (), 0, "", 0))
