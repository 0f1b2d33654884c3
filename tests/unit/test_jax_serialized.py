"""Protocol buffer messages are read, changed and written without losing unknown fields."""

from __future__ import annotations

import pytest

from determinism.frameworks.jax.serialized import Message, Unreadable, packed, read_varint, varint

NESTED = Message().add(1, 300, "name").add(2, Message().add(3, packed([1, 2, 1 << 40])))
OTHER_KINDS = bytes([5 << 3 | 5, 1, 2, 3, 4, 6 << 3 | 1, *range(8)])


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 40, (1 << 64) - 1])
def test_an_integer_is_read_as_it_was_written(value: int) -> None:
    assert read_varint(b"\xff" + varint(value) + b"\x01", 1) == (value, 1 + len(varint(value)))


def test_fields_of_every_kind_are_kept() -> None:
    data = bytes(NESTED) + OTHER_KINDS

    assert bytes(Message(data)) == data


def test_fields_are_found_by_their_path() -> None:
    message = Message(bytes(NESTED))

    assert (message.number(1), message.text(1), message.number(9)) == (300, "name", 0)
    assert message.message(2).numbers(3) == [1, 2, 1 << 40]
    assert message.message(7, 8).numbers(3) == []
    assert (message.has(2), message.has(7)) == (True, False)


def test_unpacked_numbers_are_read_too() -> None:
    assert Message(bytes(Message().add(4, 1, 2).add(4, packed([3])))).numbers(4) == [1, 2, 3]


def test_a_field_is_replaced_and_others_are_not() -> None:
    message = Message(bytes(NESTED) + OTHER_KINDS).set(1, 5)

    assert message.number(1) == 5
    assert message.text(1) == ""
    assert bytes(message.set(1).set(2)) == OTHER_KINDS


@pytest.mark.parametrize("data", [b"\x80", b"\x0a\x05ab", b"\x0b", b"\x02\x00", b"\x80" * 11], ids=repr)
def test_invalid_data_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        Message(data)
