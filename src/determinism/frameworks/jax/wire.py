"""Messages of protocol buffers as lists of fields, which can be edited and written again without the classes of the message.

XLA's classes are not part of jaxlib. Fields that nobody here knows are kept as they are: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


class Unreadable(ValueError):
    """Bytes are no such message, or lack a field that is needed; the text says which."""


class Message:
    """A message whose fields can be looked up, replaced and added."""

    def __init__(self, data: bytes = b"") -> None:
        """Read the fields.

        Raises:
            Unreadable: They are no message.
        """
        self._fields: list[tuple[int, int, int | bytes]] = list(_fields(data))

    def messages(self, number: int) -> list[Message]:
        """The messages in a field, each read anew: what is done to them changes nothing here."""
        return [Message(value) for value in self.all_data(number)]

    def message(self, *path: int) -> Message:
        """The message at the end of a path of fields; an empty one if there is none.

        Raises:
            Unreadable: It is no message.
        """
        found = self
        for number in path:
            found = Message(found.data(number))
        return found

    def data(self, number: int) -> bytes:
        """The last value of a field of bytes; empty if there is none."""
        values = self.all_data(number)
        return values[-1] if values else b""

    def all_data(self, number: int) -> list[bytes]:
        """The values of a field of bytes, in order."""
        return [value for at, _, value in self._fields if at == number and isinstance(value, bytes)]

    def text(self, number: int) -> str:
        """A field of text; empty if there is none."""
        return self.data(number).decode(errors="replace")

    def number(self, number: int) -> int:
        """A field of an integer that is not negative; 0 if there is none."""
        return next((value for at, _, value in reversed(self._fields) if at == number and isinstance(value, int)), 0)

    def numbers(self, number: int) -> list[int]:
        """A field of integers, packed or one by one."""
        found: list[int] = []
        for at, kind, value in self._fields:
            if at == number and isinstance(value, int):
                found.append(value)
            elif at == number and kind == _BYTES and isinstance(value, bytes):
                found += _packed(value)
        return found

    def has(self, number: int) -> bool:
        """Whether a field is there."""
        return any(at == number for at, _, _ in self._fields)

    def field_numbers(self) -> set[int]:
        """The fields that are there."""
        return {at for at, _, _ in self._fields}

    def set(self, number: int, *values: int | bytes | str | Message) -> Message:
        """Replace all values of a field, with none to remove it; gives the message."""
        self._fields = [one for one in self._fields if one[0] != number]
        return self.add(number, *values)

    def add(self, number: int, *values: int | bytes | str | Message) -> Message:
        """Add values to a field; gives the message."""
        for value in values:
            if isinstance(value, int):
                self._fields.append((number, _VARINT, value))
            else:
                data = value.encode() if isinstance(value, str) else bytes(value)
                self._fields.append((number, _BYTES, data))
        return self

    def __bytes__(self) -> bytes:
        """The message as it is stored."""
        written = bytearray()
        for number, kind, value in self._fields:
            written += varint(number << 3 | kind)
            if isinstance(value, int):
                written += varint(value)
            else:
                written += (varint(len(value)) if kind == _BYTES else b"") + value
        return bytes(written)


def varint(value: int) -> bytes:
    """An integer that is not negative, in groups of seven bits."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def packed(values: Iterable[int]) -> bytes:
    """Integers one after the other, as a field that repeats keeps them."""
    return b"".join(varint(value) for value in values)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer at a place, and where it ends.

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
