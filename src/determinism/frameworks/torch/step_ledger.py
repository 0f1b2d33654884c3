"""Writes the ledger of a process: what each step had of batches, loss and held tensors, as one digest for each group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from determinism.frameworks.torch.modules import Held
from determinism.trace.ledger import LedgerWriter, form_text, group_digest
from determinism.trace.schema import Layout
from determinism.trace.spool import PendingDigest, settled
from determinism.types import Role

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
    """Collects what a step had, and adds a row when it ends."""

    def __init__(self, folder: Path, state_every: int) -> None:
        """Make the file.

        Args:
            folder: Of the process.
            state_every: Every how many steps it will have all that is held.

        Raises:
            OSError: It cannot be made.
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
        """A batch arrived, or a backward began from a loss.

        Args:
            role: Which of them; others do not count.
            tensors: What it held.
            digests: Of each tensor.
            plain: Digests of values that are no tensors.
        """
        group = _GROUPS_OF_ROLES.get(role)
        if group is None:
            return
        values = self._values.setdefault(group, [])
        values += [
            f"{self._form(tensor)} {settled(digest).hex()}" for tensor, digest in zip(tensors, digests, strict=True)
        ]
        values += [f"{_VALUE} {digest.hex()}" for digest in plain]

    def loss(self, value: float | None) -> None:
        """What the last loss of the step is, as a number."""
        self._loss = value

    def hold(self, held: Sequence[Held], digests: Sequence[bytes | PendingDigest]) -> dict[str, bytes]:
        """What the program holds as the step ends.

        Args:
            held: The tensors.
            digests: Of each of them.

        Returns:
            By kind, one digest for all tensors of it.
        """
        lines: dict[str, list[str]] = {}
        form = self._form
        for one, digest in zip(held, digests, strict=True):
            kind = one.kind
            own = digest if type(digest) is bytes else settled(digest)
            if kind in lines:
                lines[kind].append(f"{form(one.tensor)} {own.hex()}")
            else:
                lines[kind] = [f"{form(one.tensor)} {own.hex()}"]
        found = {kind: group_digest(_GROUPS_OF_KINDS[kind], values) for kind, values in lines.items()}
        self._held = {_GROUPS_OF_KINDS[kind]: digest for kind, digest in found.items()}
        return found

    def end_step(self, step: int, generators: Sequence[bytes]) -> None:
        """Add the row of a step.

        Args:
            step: Its number.
            generators: Digests of the states of generators.
        """
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
