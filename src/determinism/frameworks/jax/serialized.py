"""A compiled program as XLA's CPU client stores it, and copies of it that return what their kernels wrote.

The stored form has the machine code of each kernel, the order in which they are called ("thunks"), and the memory that each reads and
writes. A copy with the same calls, and with some that copy memory in between, runs the same machine code on the same memory. Nothing is
compiled. XLA describes the form in xla/service/cpu/executable.proto, xla/backends/cpu/runtime/thunk.proto, xla/service/hlo.proto and
buffer_assignment.proto; it is not a public interface, so anything unexpected raises `Unreadable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

# Protocol buffer messages as lists of fields, which can be edited and written again without the message classes.
#
# XLA's classes are not part of jaxlib. Unknown fields are kept as they are: https://protobuf.dev/programming-guides/encoding.

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


class Unreadable(ValueError):
    """The bytes are not such a message, or lack a required field; the text says which."""


class Message:
    """A message whose fields can be looked up, replaced and added."""

    def __init__(self, data: bytes = b"") -> None:
        """Read the fields.

        Raises:
            Unreadable: The bytes are not a message.
        """
        self._fields: list[tuple[int, int, int | bytes]] = list(_fields(data))

    def messages(self, number: int) -> list[Message]:
        """The messages in a field, as copies: changing them does not change this message."""
        return [Message(value) for value in self.all_data(number)]

    def message(self, *path: int) -> Message:
        """The message at the end of a path of fields; an empty one if there is none.

        Raises:
            Unreadable: The field is not a message.
        """
        found = self
        for number in path:
            found = Message(found.data(number))
        return found

    def data(self, number: int) -> bytes:
        """The last value of a bytes field; empty if there is none."""
        values = self.all_data(number)
        return values[-1] if values else b""

    def all_data(self, number: int) -> list[bytes]:
        """The values of a bytes field, in order."""
        return [value for at, _, value in self._fields if at == number and isinstance(value, bytes)]

    def text(self, number: int) -> str:
        """The value of a text field; empty if there is none."""
        return self.data(number).decode(errors="replace")

    def number(self, number: int) -> int:
        """The value of a field with a non-negative integer; 0 if there is none."""
        return next((value for at, _, value in reversed(self._fields) if at == number and isinstance(value, int)), 0)

    def numbers(self, number: int) -> list[int]:
        """The values of a field of integers, packed or not."""
        found: list[int] = []
        for at, kind, value in self._fields:
            if at == number and isinstance(value, int):
                found.append(value)
            elif at == number and kind == _BYTES and isinstance(value, bytes):
                found += _packed(value)
        return found

    def has(self, number: int) -> bool:
        """Whether the message has a field."""
        return any(at == number for at, _, _ in self._fields)

    def set(self, number: int, *values: int | bytes | str | Message) -> Message:
        """Replace all values of a field, or remove it if none are given; return the message."""
        self._fields = [one for one in self._fields if one[0] != number]
        return self.add(number, *values)

    def add(self, number: int, *values: int | bytes | str | Message) -> Message:
        """Add values to a field; return the message."""
        for value in values:
            if isinstance(value, int):
                self._fields.append((number, _VARINT, value))
            else:
                data = value.encode() if isinstance(value, str) else bytes(value)
                self._fields.append((number, _BYTES, data))
        return self

    def __bytes__(self) -> bytes:
        """The encoded message."""
        written = bytearray()
        for number, kind, value in self._fields:
            written += varint(number << 3 | kind)
            if isinstance(value, int):
                written += varint(value)
            else:
                written += (varint(len(value)) if kind == _BYTES else b"") + value
        return bytes(written)


def varint(value: int) -> bytes:
    """Encode a non-negative integer in groups of seven bits."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def packed(values: Iterable[int]) -> bytes:
    """Encode integers as a packed repeated field."""
    return b"".join(varint(value) for value in values)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at an offset, and the offset of its end.

    Raises:
        Unreadable: The data end within it, or it has more than 64 bits.
    """
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
    raise Unreadable(f"no integer ends before byte {at} of {len(data)}")


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        yield value


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = read_varint(data, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, at = read_varint(data, at)
        else:
            size = _SIZES.get(kind, -1)
        if number == 0 or size < 0 or at + size > len(data):
            raise Unreadable(f"field {number} of kind {kind} at byte {at} of {len(data)}")
        yield number, kind, data[at : at + size]
        at += size


_BYTE = 6
"""The number of the type uint8, both in XLA and in JAX's runtime."""
_TUPLE = 13
_PROGRAM = b"\n"
"""The byte that begins a program's first field."""
_LOOP, _BRANCHES, _CALL, _COPY = 10, 4, 3, 12
"""The fields of a thunk that describe these kinds; those of other kinds are not needed."""


class Memory(NamedTuple):
    """A part of one of the program's allocations."""

    allocation: int
    offset: int
    size: int


class Step(NamedTuple):
    """A step from a sequence of thunks to one nested within it."""

    thunk: int
    """Position of the loop, condition or call."""
    branch: int = 0
    iterations: int = 0
    """How many iterations a loop runs in the copy; 0 if it is not a loop."""


class Instruction(NamedTuple):
    """An instruction of the optimised program."""

    name: str
    opcode: str
    op_name: str
    """The JAX functions and op that it came from, separated by slashes; empty if XLA created it."""
    target: str
    """The target of a custom call."""
    frames: tuple[tuple[str, int, str], ...]
    """File, line and function of the stack at which it was traced, innermost first."""


class Thunk(NamedTuple):
    """One entry of a sequence: a kernel, a library function, a loop, a condition."""

    name: str
    """Name of its instruction."""
    written: tuple[Memory, ...]
    """The memory of its results, except those that nothing reads, which may be uninitialised."""
    is_loop: bool
    most_iterations: int
    """Number of iterations of a loop; 0 if unknown."""
    branches: int
    """Number of branches of a condition; 0 for other thunks."""
    chooses: Memory | None
    """The memory that selects the branch of a condition."""
    is_call: bool


class SerializedProgram:
    """The stored form of a program, parsed."""

    def __init__(self, data: bytes) -> None:
        """Parse it.

        Args:
            data: What `LoadedExecutable.serialize` returned.

        Raises:
            Unreadable: It does not have the expected form.
        """
        # Newer versions of JAX's runtime write a header and its size before the program; that size is never 10, as `_PROGRAM` would be.
        size, at = (0, 0) if data[:1] == _PROGRAM else read_varint(data, 0)
        self._head, self._body = Message(data[at : at + size]), Message(data[at + size :])
        result = self._body.message(1)
        self._module = result.message(1, 1)
        self._buffers, self._thunks = result.message(2), result.message(6)
        self._computations = {one.number(5): one for one in self._module.messages(3)}
        self._instructions: dict[int, Message] = {}
        self._ids: dict[str, int] = {}
        self._read_whole: set[int] = set()
        self._read_parts: set[tuple[int, int]] = set()
        for computation in self._computations.values():
            self._read_whole.add(computation.number(6))
            for instruction in computation.messages(2):
                self._add(instruction)
        places = {
            value.number(1): Memory(allocation.number(1), value.number(2), value.number(3))
            for allocation in self._buffers.messages(3)
            for value in allocation.messages(9)
        }
        self._values: dict[int, list[tuple[tuple[int, ...], Memory]]] = {}
        for value in self._buffers.messages(1):
            made_at = value.message(3)
            if value.number(1) in places:
                index = tuple(made_at.numbers(3))
                self._values.setdefault(made_at.number(4), []).append((index, places[value.number(1)]))
        if not self._thunks.has(1) or self._module.number(6) not in self._computations:
            raise Unreadable("it has no sequence of kernels, or no entry")

    def _add(self, instruction: Message) -> None:
        number, operands = instruction.number(35), instruction.numbers(36)
        self._instructions[number] = instruction
        self._ids[instruction.text(1)] = number
        if instruction.text(2) == "get-tuple-element":
            self._read_parts.update((operand, instruction.number(13)) for operand in operands)
        else:
            self._read_whole.update(operands)

    def devices(self) -> tuple[int, int]:
        """Number of devices that it runs on: replicas of the program, and partitions of each."""
        options = self._body.message(2, 3)
        return max(options.number(4), 1), max(options.number(5), 1)

    def results(self) -> list[Memory]:
        """The memory that is returned to the caller when the program ends."""
        return [
            Memory(one.number(1), 0, one.number(2))
            for one in self._buffers.messages(3)
            # The memory of a tuple itself holds addresses.
            if one.number(7) and not one.number(11) and one.number(2)
        ]

    def thunks(self, path: Sequence[Step] = ()) -> list[Thunk]:
        """The sequence at the end of a path.

        Raises:
            Unreadable: An entry does not belong to an instruction.
        """
        sequence = self._thunks
        for step in path:
            sequence = _within(sequence.messages(1)[step.thunk], step)
        return [self._thunk(one) for one in sequence.messages(1)]

    def _thunk(self, thunk: Message) -> Thunk:
        name = thunk.message(2).text(1)
        if name not in self._ids:
            raise Unreadable(f"no instruction is called {name!r}")
        loop, condition = thunk.message(_LOOP), thunk.message(_BRANCHES)
        return Thunk(
            name,
            tuple(self._written(self._ids[name])),
            thunk.has(_LOOP),
            loop.message(3).number(1),
            len(condition.all_data(1)),
            _memory(condition.message(2)) if thunk.has(_BRANCHES) else None,
            thunk.has(_CALL),
        )

    def _written(self, number: int) -> Iterator[Memory]:
        instruction = self._instructions[number]
        if instruction.text(2) == "call":
            # The result of a call is that of the called function.
            for called in instruction.numbers(38):
                if called in self._computations:
                    yield from self._written(self._computations[called].number(6))
            return
        for index, memory in self._values.get(number, ()):
            if memory.size and not self._is_tuple(number, index) and self._is_read(number, index):
                yield memory

    def _is_tuple(self, number: int, index: Sequence[int]) -> bool:
        shape = self._instructions[number].message(3) if number in self._instructions else Message()
        for part in index:
            parts = shape.messages(4)
            if part >= len(parts):
                return False
            shape = parts[part]
        return shape.number(2) == _TUPLE

    def _is_read(self, number: int, index: Sequence[int]) -> bool:
        return not index or number in self._read_whole or (number, index[0]) in self._read_parts

    def instruction(self, name: str) -> Instruction:
        """An instruction by its name."""
        return self._about(self._instructions[self._ids[name]])

    def fused(self, name: str) -> list[Instruction]:
        """The instructions fused into an instruction's kernel, in order; empty for a single op."""
        pending, found = self._instructions[self._ids[name]].numbers(38), []
        while pending:
            computation = self._computations.get(pending.pop(0), Message())
            for one in computation.messages(2):
                found.append(self._about(one))
                pending += one.numbers(38)
        return found

    def _about(self, instruction: Message) -> Instruction:
        metadata = instruction.message(7)
        frames = tuple(self._frames(metadata.number(15))) or ((metadata.text(3), metadata.number(4), ""),)
        return Instruction(
            instruction.text(1),
            instruction.text(2),
            metadata.text(2),
            instruction.text(28),
            tuple(one for one in frames if one[0]),
        )

    def _frames(self, number: int) -> Iterator[tuple[str, int, str]]:
        """Source locations from the module's table, from a frame outwards; frame 0 is none."""
        index = self._module.message(17)
        files, functions = index.all_data(1), index.all_data(2)
        locations, frames = index.messages(3), index.messages(4)
        for _ in range(len(frames)):
            if not 0 < number <= len(frames):
                return
            frame = frames[number - 1]
            location = locations[frame.number(1) - 1] if 0 < frame.number(1) <= len(locations) else Message()
            yield _named(files, location.number(1)), location.number(3), _named(functions, location.number(2))
            number = frame.number(2)

    def watching(self, path: Sequence[Step], watched: Mapping[int, Sequence[Memory]]) -> bytes:
        """A copy of the program that returns one array of bytes: the content of parts of its memory at some points.

        Args:
            path: The path to the watched sequence. In a loop on the path, the last iteration is watched.
            watched: The parts, by the number of the thunk after which they are read, -1 for before the first. The array has them in
                this order.

        Raises:
            Unreadable: The program does not have the expected form.
        """
        size = sum(memory.size for parts in watched.values() for memory in parts)
        result, (module, instruction) = self._body.message(1), self._module_giving(size)
        buffers, allocation = self._buffers_giving(size, instruction)
        compiled = result.message(1)
        layout = compiled.message(2, 1).set(2, _shape(size))
        compiled.set(1, module).set(2, compiled.message(2).set(1, layout))
        thunks = _rewritten(self._thunks, path, list(_copies(watched, allocation)))
        result.set(1, compiled).set(2, buffers).set(6, thunks)
        options = self._body.message(2)
        if options.message(3).has(2):
            options.set(3, options.message(3).set(2, _shape(size)))
        head = bytes(self._head_giving(size))
        body = Message(bytes(self._body)).set(1, result).set(2, options)
        return (varint(len(head)) + head if head else b"") + bytes(body)

    def _head_giving(self, size: int) -> Message:
        """The header that JAX's runtime writes before the program, with type and shape of the result; older versions write none."""
        head = Message(bytes(self._head))
        results = head.messages(5)
        if results:
            extent = Message().add(1, packed([size]))
            given = results[0].set(1, extent).set(2, Message().add(1, _BYTE))
            head.set(5, given.set(6, extent) if given.has(6) else given)
        return head

    def _module_giving(self, size: int) -> tuple[Message, int]:
        """The module with one more instruction, which represents the array of bytes and is the result; and its number."""
        module, entry = Message(bytes(self._module)), self._module.number(6)
        first = self._computations[entry].messages(2)[0].number(35)
        # Numbers are unique within a computation; in newer versions the upper half is the computation's number.
        number = max(self._instructions) + 1 if first >> 32 == 0 else self._next_in(entry)
        stand_in = Message().add(1, "watched").add(2, "iota").add(3, _shape(size)).add(14, packed([0])).add(35, number)
        computations = module.messages(3)
        for one in computations:
            if one.number(5) == entry:
                one.add(2, stand_in).set(6, number).set(4, one.message(4).set(2, _shape(size)))
        module.set(3, *computations).set(4, module.message(4).set(2, _shape(size)))
        # The result does not reuse memory of the arguments.
        module.set(8, Message()).set(18, Message())
        schedule = module.message(7)
        sequences = schedule.messages(1)
        for one in sequences:
            if one.number(1) == entry:
                one.set(2, Message().add(1, packed([*one.message(2).numbers(1), number])))
        if sequences:
            module.set(7, schedule.set(1, *sequences))
        return module, number

    def _next_in(self, entry: int) -> int:
        return max(one.number(35) for one in self._computations[entry].messages(2)) + 1

    def _buffers_giving(self, size: int, instruction: int) -> tuple[Message, int]:
        """The buffers with one more allocation, the only one that is returned to the caller; and its number."""
        buffers = Message(bytes(self._buffers))
        value = max((one.number(1) for one in buffers.messages(1)), default=0) + 1
        buffers.add(1, Message().add(1, value).add(2, size).add(3, Message().add(4, instruction)))
        allocations = [one.set(7) for one in buffers.messages(3)]
        number = max((one.number(1) for one in allocations), default=-1) + 1
        part = Message().add(1, value).add(3, size).add(4, _BYTE)
        allocations.append(Message().add(1, number).add(2, size).add(7, 1).add(9, part))
        return buffers.set(3, *allocations), number


def _named(table: Sequence[bytes], number: int) -> str:
    return table[number - 1].decode(errors="replace") if 0 < number <= len(table) else ""


def _shape(size: int) -> Message:
    """The shape of an array of bytes."""
    layout = Message().add(1, packed([0])).add(16, 1)
    return Message().add(2, _BYTE).add(3, packed([size])).add(5, layout).add(6, packed([0]))


def _memory(part: Message) -> Memory:
    return Memory(part.number(3), part.number(1), part.number(2))


def _within(thunk: Message, step: Step) -> Message:
    """The sequence of thunks that a thunk runs."""
    if thunk.has(_LOOP):
        return thunk.message(_LOOP, 2)
    if thunk.has(_BRANCHES):
        return thunk.message(_BRANCHES).messages(1)[step.branch]
    return thunk.message(_CALL, 1)


def _copies(watched: Mapping[int, Sequence[Memory]], allocation: int) -> Iterator[tuple[int, Message]]:
    """For each watched part, the number of the thunk after which it is read, and a thunk that copies it."""
    offset = 0
    for after, parts in watched.items():
        for memory in parts:
            source, target = (
                Message().add(1, _shape(memory.size)).add(2, _part(one))
                for one in (memory, Memory(allocation, offset, memory.size))
            )
            about = Message().add(1, "watched").add(2, "watched")
            yield after, Message().add(1, "copy").add(2, about).add(_COPY, Message().add(1, source).add(2, target))
            offset += memory.size


def _part(memory: Memory) -> Message:
    return Message().add(1, memory.offset).add(2, memory.size).add(3, memory.allocation).add(4, _BYTE)


def _rewritten(sequence: Message, path: Sequence[Step], copies: Sequence[tuple[int, Message]]) -> Message:
    """Insert the copies into the sequence at the end of a path."""
    thunks = sequence.messages(1)
    if path:
        step, *rest = path
        thunks[step.thunk] = _rewritten_within(thunks[step.thunk], step, rest, copies)
        return Message(bytes(sequence)).set(1, *thunks)
    written: list[Message] = [copy for after, copy in copies if after < 0]
    moved = []
    for number, thunk in enumerate(thunks):
        moved.append(len(written))
        written += [thunk, *(copy for after, copy in copies if after == number)]
    changed = Message(bytes(sequence)).set(1, *written)
    # Numbers of the thunks that share a resource other than memory.
    users = changed.messages(2)
    for one in users:
        one.set(1, packed(moved[number] for number in one.numbers(1)))
    return changed.set(2, *users)


def _rewritten_within(
    thunk: Message, step: Step, path: Sequence[Step], copies: Sequence[tuple[int, Message]]
) -> Message:
    inner = _rewritten(_within(thunk, step), path, copies)
    if thunk.has(_LOOP):
        loop = thunk.message(_LOOP).set(2, inner)
        if step.iterations:
            loop.set(3, Message().add(1, step.iterations).add(2, 1))
        return thunk.set(_LOOP, loop)
    if thunk.has(_BRANCHES):
        condition = thunk.message(_BRANCHES)
        branches = condition.messages(1)
        branches[step.branch] = inner
        return thunk.set(_BRANCHES, condition.set(1, *branches))
    return thunk.set(_CALL, thunk.message(_CALL).set(1, inner))
