"""A folder that is there whole or not at all: written beside its place, flushed, then renamed."""

import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_folder(folder: Path) -> Generator[Path]:
    """Yield an empty folder to fill; it takes the place of `folder` when the body succeeds.

    An older `folder` stays until the new one is complete. When the body raises, nothing is left.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    suffix = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    fresh = folder.parent / f".{folder.name}.tmp-{suffix}"
    stale = folder.parent / f".{folder.name}.old-{suffix}"
    fresh.mkdir()
    try:
        yield fresh
        for path in [*fresh.rglob("*"), fresh]:
            _fsync(path)
        if folder.exists():
            folder.rename(stale)
        fresh.rename(folder)
        _fsync(folder.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        if stale.exists() and not folder.exists():
            stale.rename(folder)
        raise
    shutil.rmtree(stale, ignore_errors=True)
