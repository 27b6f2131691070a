"""Periodic exports of the trained model, of which the newest few are kept."""

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from areal_agent.checkpoint.freq import FrequencyControl
from areal_agent.config.experiment import SaverConfig

logger = logging.getLogger(__name__)


class Saver:
    """Writes ``step-000012`` folders, then removes the oldest of its own.

    An export is complete before an older one goes. Folders that this saver did not write, whatever
    they are called, are neither counted nor touched.
    """

    def __init__(
        self,
        config: SaverConfig,
        folder: Path,
        *,
        export: Callable[[Path], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Plan exports.

        Args:
            config: how often, and how many to keep.
            folder: where the exports go; made when needed.
            export: writes the model to a folder that does not exist yet.
            clock: seconds, for `freq_secs`.
        """
        self._keep = config.keep
        self._folder = folder
        self._export = export
        self._control = FrequencyControl.of(config, clock=clock)
        self._written: list[Path] = []

    @property
    def written(self) -> list[Path]:
        """Exports of this saver that are still there, oldest first."""
        return list(self._written)

    async def save(
        self, step: int, *, epoch_ended: bool = False, last: bool = False
    ) -> Path | None:
        """Export after step number `step` when it is due. Call it once after each step.

        Args:
            step: names the folder.
            epoch_ended: the step was the last of its epoch.
            last: the step was the last of the run: it is always exported.

        Returns:
            The new folder, or None when it was not due.
        """
        due = self._control.check(epochs=int(epoch_ended), steps=1)
        if not (due or last):
            return None
        partial = self._folder / f".step-{step:06d}.partial"
        try:
            await asyncio.to_thread(_prepare, partial)
            await self._export(partial)
            target = await asyncio.to_thread(_move_to_free_name, partial, f"step-{step:06d}")
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._written.append(target)
        logger.info("exported the model of step %d to %s", step, target)
        await self._drop_old()
        return target

    async def _drop_old(self) -> None:
        if self._keep is None:
            return
        while len(self._written) > self._keep:
            await asyncio.to_thread(_remove, self._written.pop(0))


def _prepare(partial: Path) -> None:
    partial.parent.mkdir(parents=True, exist_ok=True)
    if partial.exists():  # of a run that was killed while it exported
        shutil.rmtree(partial)


def _move_to_free_name(partial: Path, name: str) -> Path:
    """Rename to `name`, or to ``name-2``, ``name-3``, … when somebody else's folder is there."""
    target, number = partial.with_name(name), 1
    while target.exists():
        number += 1
        target = partial.with_name(f"{name}-{number}")
    partial.rename(target)
    return target


def _remove(folder: Path) -> None:
    """Remove an export under another name, so that no half of it looks like a whole one."""
    doomed = folder.with_name(f".{folder.name}.removed")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        logger.warning("an old export could not be removed: %s", error)
