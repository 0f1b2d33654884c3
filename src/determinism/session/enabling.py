"""`determinism.enable`: makes what is imported deterministic, and what is imported later."""

from __future__ import annotations

from determinism.session import seeding
from determinism.session.setting_maker import SettingMaker
from determinism.session.settings import Settings
from determinism.settings.request import Request


def enable(
    seed: int | None = None,
    *,
    warn_only: bool = False,
    threads: int | None = None,
    precision: str | None = None,
) -> Settings:
    """Make this process deterministic: PyTorch, TensorFlow with Keras, JAX, NumPy and Python, as far as they are installed.

    It may be called before or after they are imported. Settings of a framework that is not imported yet are made when it is.
    Nothing is printed; look at the result.

    Args:
        seed: Seeds every generator, each with a stream of its own; see `determinism.seed`. None leaves them.
        warn_only: Ops without a deterministic implementation warn instead of raising.
        threads: How many threads compute on the CPU; None leaves it. Results depend on it.
        precision: How exact float32 matrix products are: "highest", "high" or "medium"; None leaves it.

    Returns:
        Each setting: what it was and is, why, and whether it took effect. As a context (`with determinism.enable(seed=1):`) it
        puts everything back at the end.

    Raises:
        UsageError: An argument is out of range; nothing was set.
    """
    request = Request(warn_only=warn_only, threads=threads, precision=precision)
    settings = Settings(SettingMaker(request))
    settings.begin()
    if seed is not None:
        settings.will_undo("seeds", seeding.capture_states())
        try:
            seeding.start(seed)
        except Exception:
            settings.restore()
            raise
    return settings


def look(request: Request | None = None) -> Settings:
    """Look at every setting without changing any.

    Args:
        request: What would be asked for.
    """
    request = request or Request()
    settings = Settings(SettingMaker(Request(request.warn_only, request.threads, request.precision, change=False)))
    settings.begin()
    return settings
