"""The result of `determinism.enable`."""

from __future__ import annotations

from determinism.errors import StateError
from determinism.settings import left_open, rendering
from determinism.settings.setting import Effect, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from determinism.session.setting_changes import Change
    from determinism.session.setting_maker import SettingMaker
    from determinism.settings.facts import Remaining


class Settings:
    """Every setting that was looked at: what it was and is, why, its source, and whether it took effect.

    Iterating gives the settings, `settings["torch.backends.cudnn.benchmark"]` one of them. As a context, everything is put back
    at the end.
    """

    def __init__(self, maker: SettingMaker) -> None:
        """Take what makes the settings; `begin` makes them."""
        self._maker = maker
        self._made: dict[str, list[Setting]] = {}
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._is_active = True
        self._seeds_at_end: list[Setting] | None = None

    def begin(self) -> None:
        """Make the settings of everything that is installed; those of frameworks that are not imported wait for that."""
        for group in self._maker.groups():
            self._made[group] = []
            self._take(group, self._maker.changes(group))
            self._maker.when_imported(group, self._imported(group), self._failed(group))
        if self._maker.request.change:
            left_open.add(self._open)

    def will_undo(self, name: str, undo: Callable[[], None]) -> None:
        """Put something else back, too, and before what was changed until now.

        Args:
            name: What it is called if that fails.
            undo: Puts it back.
        """
        self._undo.append((name, undo))

    def __iter__(self) -> Iterator[Setting]:
        for settings in self._made.values():
            yield from settings
        yield from self._maker.seeds() if self._seeds_at_end is None else self._seeds_at_end

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Setting:
        for setting in self:
            if setting.name == name:
                return setting
        raise KeyError(name)

    @property
    def open(self) -> list[Setting]:
        """The settings that are not as they should be: they need a fresh process, or could not be applied."""
        return self._open()

    def _open(self) -> list[Setting]:
        return [setting for setting in self if setting.effect.is_open]

    @property
    def remaining(self) -> list[Remaining]:
        """What stays nondeterministic in the installed versions with every setting made."""
        return self._maker.remaining(list(self._made))

    def restore(self) -> None:
        """Put every setting, every variable and the states of all generators back; once done, this does nothing.

        Raises:
            StateError: Something could not be put back; everything else was.
        """
        failures = self._restore()
        if failures:
            raise StateError(
                "settings-not-restored",
                f"These settings could not be put back, all others were: {'; '.join(failures)}. Start a fresh process to have "
                "them as they were.",
            )

    def _restore(self) -> list[str]:
        if self._is_active:
            self._seeds_at_end = self._maker.seeds()
        self._is_active = False
        left_open.remove(self._open)
        failures = []
        while self._undo:
            name, undo = self._undo.pop()
            try:
                undo()
            except Exception as error:
                failures.append(f"{name} ({type(error).__name__}: {error})")
        return failures

    def __enter__(self) -> Settings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.restore()
        else:
            # The program's own error says more.
            self._restore()

    def explain(self) -> None:
        """Print each setting with its reason, its source and what to write to make it by hand."""
        print(rendering.explanation(list(self), self.remaining))

    def __repr__(self) -> str:
        return rendering.table(list(self), self.remaining)

    def _repr_html_(self) -> str:
        return rendering.html_table(list(self), self.remaining)

    def _take(self, group: str, changes: list[Change]) -> None:
        replaced = {change.setting.name: change.setting for change in changes}
        kept = [replaced.pop(setting.name, setting) for setting in self._made[group]]
        self._made[group] = [*kept, *replaced.values()]
        self._undo += [(change.setting.name, change.undo) for change in changes if change.undo is not None]

    def _imported(self, group: str) -> Callable[[], None]:
        def imported() -> None:
            if self._is_active:
                self._take(group, self._maker.again(group, self._made[group]))

        return imported

    def _failed(self, group: str) -> Callable[[str], None]:
        def failed(message: str) -> None:
            self._made[group] = [
                Setting(
                    one.name, one.group, one.before, one.after, Effect.FAILED, one.why, one.source, message, one.line
                )
                if one.effect is Effect.WAITING
                else one
                for one in self._made[group]
            ]

        return failed
