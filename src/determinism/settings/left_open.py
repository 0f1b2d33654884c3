"""Which settings were asked for in this process and could not be made, for whoever records the process."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from determinism.settings.setting import Setting

_askers: list[Callable[[], Iterable[Setting]]] = []


def add(open_settings: Callable[[], Iterable[Setting]]) -> None:
    """Settings were asked for.

    Args:
        open_settings: Gives those that are not as they should be now.
    """
    _askers.append(open_settings)


def remove(open_settings: Callable[[], Iterable[Setting]]) -> None:
    """They are asked for no longer."""
    if open_settings in _askers:
        _askers.remove(open_settings)


def facts() -> dict[str, str]:
    """Name of each such setting, and why it could not be made."""
    return {one.name: f"{one.effect}. {one.detail}".strip() for asker in _askers for one in asker()}
