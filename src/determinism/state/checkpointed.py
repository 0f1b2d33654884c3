"""A state as something that checkpoints itself, as `torch.distributed.checkpoint` asks for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from determinism.errors import StateError
from determinism.state.captured import from_bytes
from determinism.state.capturing import capture, is_stateful
from determinism.state.generators import state_of
from determinism.state.restoring import restore
from determinism.state.surroundings import surroundings


class Checkpointed:
    """Captures when it is asked for its `state_dict`, and restores when one is loaded.

    It is a `Stateful` of `torch.distributed.checkpoint`. Each rank saves under a name of its own, since what ranks save under the same
    name counts there as the same and is kept once.
    """

    def __init__(self, *, allow: Collection[str] = (), **parts: Any) -> None:
        """Take what belongs to the state.

        Args:
            allow: As for `restore`.
            **parts: As for `capture`; plain values are what they are now. Change them through `values`.
        """
        self.values: dict[str, Any] = {
            name: part for name, part in parts.items() if not is_stateful(part) and state_of(part) is None
        }
        self._parts = {name: part for name, part in parts.items() if name not in self.values}
        self._allow = allow

    def state_dict(self) -> dict[str, bytes]:
        """The state now, under the name of this rank."""
        return {_name(): capture(**self._parts, **self.values).to_bytes()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Put a state back.

        Args:
            saved: What `state_dict` gave.

        Raises:
            StateError: It is not of this rank, or does not fit.
        """
        if _name() not in saved:
            raise StateError(
                "state-unfit",
                f"The checkpoint holds states of {', '.join(sorted(map(str, saved))) or 'no rank'}, and this is {_name()}, so nothing "
                "was put back. Resume with as many ranks as it was saved with.",
            )
        state = from_bytes(saved[_name()])
        restore(state, allow=self._allow, **self._parts)
        self.values = {name: state[name] for name in self.values if name in state}


def _name() -> str:
    return f"rank-{surroundings()['rank']}"
