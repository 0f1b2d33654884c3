"""The ledger of a process: one row of digests for each step, by group of tensors, in a file that grows row by row.

A golden has the same digests, shortened, as text. A row is in the file when `add` returns, even if the process is killed the
next moment, and has a root: the digest of everything else in it. So two ledgers are compared by their roots, and a
partially written row is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from determinism.digest import digest_bytes
from determinism.errors import TraceError
from determinism.trace.files import open_plain, private
from determinism.trace.schema import LEDGER_FILE, Layout

GROUPS = ("batches", "loss", "gradients", "optimizer", "parameters", "buffers", "results", "generators")
"""What is digested, in the order in which a step computes it. `results` is for JAX programs without state: the outputs of their ops."""
ORDERED_GROUPS = ("batches", "loss", "results")
"""Groups in which order matters. In the others, names and order of tensors do not: renaming changes nothing."""
STATE_GROUPS = ("optimizer", "parameters", "buffers")
"""Groups that a ledger may have only at some steps: the program's state, except gradients."""
DIGEST_BYTES = 16

FORMAT = "determinism.ledger/1"
_HEADER_BYTES = 256
_TENSOR_GROUPS = GROUPS[:-1]
_MOST_GENERATORS = 4
_ROW = struct.Struct(f"<qdII{(len(_TENSOR_GROUPS) + _MOST_GENERATORS) * DIGEST_BYTES}s{DIGEST_BYTES}s")
_ROW_TYPE = np.dtype(
    [
        ("step", "<i8"), ("loss", "<f8"), ("present", "<u4"), ("num_generators", "<u4"),
        ("groups", "V16", (len(_TENSOR_GROUPS),)), ("generators", "V16", (_MOST_GENERATORS,)), ("root", "V16"),
    ]
)  # fmt: skip
_STATE = [_TENSOR_GROUPS.index(group) for group in STATE_GROUPS]
_LOSS_IS_KNOWN = 1 << len(GROUPS)
ROW_BYTES = _ROW.size
"""Size of the row of one step of one process."""
_ROWS_AT_ONCE = 1 << 16


def group_digest(group: str, values: Sequence[str]) -> bytes:
    """Combine the tensors of a group at one step into one digest.

    Args:
        group: One of `GROUPS`.
        values: Form and digest of each tensor, as `value_line` writes them; at least one.
    """
    lines = values if group in ORDERED_GROUPS else sorted(values)
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=DIGEST_BYTES).digest()


def form_text(layout: Layout | None) -> str:
    """The form of a tensor as it enters the digest of its group; None means a value that is not a tensor."""
    return "value" if layout is None else f"{layout.dtype} {list(layout.shape)}"


def value_line(form: str, digest: bytes) -> str:
    """The line with which a tensor enters the digest of its group."""
    return f"{form} {digest.hex()}"


class LedgerWriter:
    """Adds rows to the ledger of one process."""

    def __init__(self, folder: Path, state_every: int = 1) -> None:
        """Create the file.

        Args:
            folder: Folder of the process.
            state_every: The interval in steps at which rows have `STATE_GROUPS`; others may have them.

        Raises:
            OSError: It cannot be created.
        """
        facts = {"format": FORMAT, "groups": GROUPS, "row_bytes": ROW_BYTES, "state_every": state_every}
        header = json.dumps(facts).encode()
        self._descriptor: int | None = private(str(folder / LEDGER_FILE), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(self._descriptor, header.ljust(_HEADER_BYTES - 1) + b"\n")

    def add(
        self, step: int, groups: Mapping[str, bytes], generators: Sequence[bytes], loss: float | None = None
    ) -> None:
        """Add a step.

        Args:
            step: Its number.
            groups: The digest of each group that is not empty at this step.
            generators: Digests of the generators' states.
            loss: Its value, if known.

        Raises:
            OSError: It cannot be written; the previous rows are unharmed.
        """
        if self._descriptor is None:
            return
        present = sum(1 << number for number, group in enumerate(_TENSOR_GROUPS) if group in groups)
        present |= _LOSS_IS_KNOWN if loss is not None else 0
        states = list(generators[:_MOST_GENERATORS])
        if len(generators) > _MOST_GENERATORS:
            states[-1] = digest_bytes(b"".join(generators[_MOST_GENERATORS - 1 :]))
        absent = bytes(DIGEST_BYTES)
        digests = b"".join(
            [
                *(groups.get(group, absent) for group in _TENSOR_GROUPS),
                *states,
                absent * (_MOST_GENERATORS - len(states)),
            ]
        )
        value = 0.0 if loss is None else loss
        facts = _ROW.pack(step, value, present, len(states), digests, absent)[:-DIGEST_BYTES]
        os.write(self._descriptor, facts + digest_bytes(facts))

    def close(self) -> None:
        """Close the file; rows added from now on are dropped."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class StoredLedger:
    """The rows of one process, which stay on the disk until they are accessed."""

    rows: np.ndarray[Any, np.dtype[np.void]]
    state_every: int = 1
    """The interval in steps at which rows have `STATE_GROUPS`; others may have them."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def empty(cls) -> StoredLedger:
        """The ledger of a process without steps."""
        return cls(np.zeros(0, _ROW_TYPE))

    def from_step(self, step: int) -> StoredLedger:
        """The rows from a step on."""
        return replace(self, rows=self.rows[int(np.searchsorted(self.rows["step"], step)) :])

    @property
    def roots(self) -> np.ndarray[Any, Any]:
        """The root of each step, as two numbers."""
        return _numbers(self.rows["root"])

    def step(self, place: int) -> int:
        """The step number of a row."""
        return int(self.rows["step"][place])

    def loss(self, place: int) -> float | None:
        """The loss of a row, if known."""
        row = self.rows[place]
        return float(row["loss"]) if int(row["present"]) & _LOSS_IS_KNOWN else None

    def digests(self, place: int) -> dict[str, bytes]:
        """The digests of a row, by group."""
        row = self.rows[place]
        present = int(row["present"])
        found = {
            group: row["groups"][number].tobytes()
            for number, group in enumerate(_TENSOR_GROUPS)
            if present & (1 << number)
        }
        states = row["generators"][: int(row["num_generators"])].tobytes()
        return {**found, "generators": digest_bytes(states)} if states else found


def _numbers(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A column of digests as two numbers each, without copying the other columns."""
    return np.ascontiguousarray(column).view("<u8").reshape(len(column), -1)


def has_ledger(folder: Path) -> bool:
    """Whether a process has a ledger."""
    return (folder / LEDGER_FILE).is_file()


def read_ledger(folder: Path) -> StoredLedger:
    """Open the ledger of a process; a row that its process could not finish is left out.

    Raises:
        TraceError: There is none, or it is damaged.
    """
    path = folder / LEDGER_FILE
    try:
        with open_plain(path) as file:
            header = file.read(_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
        found = json.loads(header)
        form = found.get("format") if isinstance(found, dict) else None
        state_every = int(found.get("state_every", 1)) if form == FORMAT else 1
    except FileNotFoundError:
        raise TraceError(
            "ledger-missing",
            f"{folder} has no ledger, so its steps cannot be compared. Record the program with: determinism record --level step",
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(path, str(error)) from None
    if form != FORMAT:
        raise TraceError(
            "ledger-newer",
            f"{path} has the format {str(form)[:40]!r}, and this version reads {FORMAT!r}. Use the version that wrote it.",
        )
    if state_every < 1:
        raise _damaged(path, f"it claims to have the state every {state_every} steps")
    count = max(0, (size - _HEADER_BYTES) // ROW_BYTES)
    if count == 0:
        return StoredLedger.empty()
    rows = np.memmap(path, _ROW_TYPE, "r", _HEADER_BYTES, (count,))
    for place in {0, count - 1}:
        raw = rows[place].tobytes()
        if digest_bytes(raw[:-DIGEST_BYTES]) != raw[-DIGEST_BYTES:]:
            raise _damaged(path, f"row {place} does not match its digest")
    return StoredLedger(rows, state_every)


def _damaged(path: Path, reason: str) -> TraceError:
    return TraceError(
        "ledger-damaged",
        f"The ledger {path} is damaged: {reason[:120]}. Nothing was compared. Record the run again.",
    )


@dataclass(frozen=True)
class LedgerParting:
    """The first step at which two ledgers differ."""

    process: str
    step: int
    groups: tuple[str, ...]
    """The groups that differ there, in the order in which a step computes them; empty if one run did not get that far."""
    steps: tuple[int, int]
    """The number of steps of each."""
    losses: tuple[float | None, float | None] = (None, None)
    since: int = -1
    """The first step that may have caused the difference: earlier than `step` if the differing groups were not digested in between."""


def first_parting(first: StoredLedger, second: StoredLedger, process: str = "main") -> LedgerParting | None:
    """Find the first step at which two ledgers differ; None if they are equal.

    A difference of generator states alone does not count: their draws may affect nothing. It is reported along with others if the states were
    equal a step before: generators that nothing seeds or draws from differ from the start.
    """
    common = min(len(first), len(second))
    apart = np.flatnonzero((first.roots[:common] != second.roots[:common]).any(axis=1))
    for start in range(0, len(apart), _ROWS_AT_ONCE):
        places = apart[start : start + _ROWS_AT_ONCE]
        differs = _differing_groups(first, second, places).any(axis=1)
        differs |= first.rows["step"][places] != second.rows["step"][places]
        if differs.any():
            return _at(first, second, int(places[int(np.argmax(differs))]), process)
    steps = (len(first), len(second))
    if steps[0] == steps[1]:
        return None
    longer = first if steps[0] > steps[1] else second
    step = longer.step(common)
    return LedgerParting(process, step, (), steps, since=step)


def _differing_groups(first: StoredLedger, second: StoredLedger, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For each of some rows, and each group of tensors, whether it differs."""
    mine, other = first.rows[places], second.rows[places]
    shape = (len(places), len(_TENSOR_GROUPS), -1)
    differs: np.ndarray[Any, Any] = (
        _numbers(mine["groups"]).reshape(shape) != _numbers(other["groups"]).reshape(shape)
    ).any(axis=2)
    bits = 1 << np.arange(len(_TENSOR_GROUPS), dtype=np.uint32)
    has, other_has = ((row["present"][:, None] & bits) != 0 for row in (mine, other))
    differs |= has != other_has
    # A resumed run has the state of its first step, whatever the number of that step.
    is_due = np.ones(len(places), bool)
    for ledger, rows in ((first, mine), (second, other)):
        is_due &= (rows["step"] + 1) % ledger.state_every == 0
    differs[:, _STATE] &= is_due[:, None] | (has & other_has)[:, _STATE]
    return differs


def _at(first: StoredLedger, second: StoredLedger, place: int, process: str) -> LedgerParting:
    mine, other = first.digests(place), second.digests(place)
    differs = _differing_groups(first, second, np.array([place]))[0]
    groups = [group for group, is_different in zip(_TENSOR_GROUPS, differs, strict=True) if is_different]
    before = place > 0 and first.digests(place - 1).get("generators") == second.digests(place - 1).get("generators")
    if before and mine.get("generators") != other.get("generators"):
        groups.append("generators")
    losses = (first.loss(place), second.loss(place))
    since = place
    if set(groups) & set(STATE_GROUPS) and set(groups) <= {*STATE_GROUPS, "generators"}:
        since = _last_with(first, second, place, groups) + 1
    steps = (len(first), len(second))
    return LedgerParting(process, first.step(place), tuple(groups), steps, losses, first.step(since))


def _last_with(first: StoredLedger, second: StoredLedger, place: int, groups: Sequence[str]) -> int:
    """The last row before a place in which both ledgers have all state groups among these; -1 if there is none."""
    wanted = sum(1 << number for number in _STATE if _TENSOR_GROUPS[number] in groups)
    for earlier in range(place - 1, -1, -1):
        if all(int(ledger.rows[earlier]["present"]) & wanted == wanted for ledger in (first, second)):
            return earlier
    return -1


def earliest(partings: Iterable[LedgerParting | None]) -> LedgerParting | None:
    """The earliest parting among those of several processes; None if there is none.

    Within a step, the one whose first group is computed first: gradients that ranks exchange follow the loss of one of them.
    """

    def moment(parting: LedgerParting) -> tuple[int, int, str]:
        first = GROUPS.index(parting.groups[0]) if parting.groups else len(GROUPS)
        return parting.step, first, parting.process

    return min((parting for parting in partings if parting is not None), key=moment, default=None)
