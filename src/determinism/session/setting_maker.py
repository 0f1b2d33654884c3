"""Makes the settings of one framework after the other, or looks at them."""

from __future__ import annotations

import sys

from determinism.frameworks.registry import ENABLERS
from determinism.import_hook import after_import
from determinism.session import seed_settings
from determinism.session.setting_changes import Change, make
from determinism.settings.facts import GROUPS, Remaining, facts_of, remaining_of
from determinism.settings.request import Request
from determinism.settings.setting import Effect, Setting
from determinism.settings.surroundings import is_loaded, version_of
from determinism.settings.versions import is_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class SettingMaker:
    """Makes the settings of one framework after the other, now or when it is imported."""

    def __init__(self, request: Request) -> None:
        """Take what is asked for."""
        self.request = request

    def groups(self) -> list[str]:
        """The frameworks that are installed, after what belongs to none."""
        return [group for group in GROUPS if group not in ENABLERS or is_loaded(group) or version_of(group) is not None]

    def changes(self, group: str) -> list[Change]:
        """Make the settings of a framework."""
        version = (version_of(group) or "") if group in ENABLERS else ""
        return [make(fact, version, self.request) for fact in facts_of(group)]

    def again(self, group: str, settings: list[Setting]) -> list[Change]:
        """Make those settings of a framework that waited for its import."""
        waiting = {setting.name for setting in settings if setting.effect is Effect.WAITING}
        version = version_of(group) or ""
        return [make(fact, version, self.request) for fact in facts_of(group) if fact.name in waiting]

    def when_imported(self, group: str, callback: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Call back when a framework has been imported; never if it was already."""

        def imported(_: ModuleType) -> None:
            try:
                if is_loaded(group):
                    callback()
            except Exception as error:
                failed(f"{type(error).__name__}: {error}")

        if group in ENABLERS and group not in sys.modules:
            after_import(group, imported, failed)

    def seeds(self) -> list[Setting]:
        """What became of the seeds."""
        return seed_settings.seed_settings(change=self.request.change)

    def remaining(self, groups: list[str]) -> list[Remaining]:
        """What stays nondeterministic in the installed versions."""
        found = []
        for group in groups:
            version = version_of(group) if group in ENABLERS else None
            found += [entry for entry in remaining_of(group) if version is not None and _concerns(entry, version)]
        return found


def _concerns(entry: Remaining, version: str) -> bool:
    return is_within(version, entry.versions)
