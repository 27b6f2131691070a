"""A file of lines that holds whole lines only, whatever the disk does."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import aiofiles
from aiofiles.threadpool.binary import AsyncFileIO


class LineFile:
    """Appends lines. Writing that fails leaves the file as it was before.

    It has a thread of its own: what blocks the others does not hold up the writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lines")
        self._file: AsyncFileIO | None = None
        self._size = 0
        """Bytes of whole lines."""
        self._is_torn = False
        """Behind them there may be a piece of one."""
        self._lead = b""
        """What ends the last line of a process that was killed while it wrote."""

    async def append(self, lines: bytes) -> None:
        """Write lines, each with its end.

        Raises:
            OSError: they could not be written; none of them is in the file.
        """
        file = await self._opened()
        await self._mend(file)
        lines = self._lead + lines
        written = 0
        try:
            while written < len(lines):
                self._is_torn = True
                written += await file.write(lines[written:])
        except OSError:
            await self._mend(file)
            raise
        self._is_torn = False
        self._lead = b""
        self._size += written

    async def _opened(self) -> AsyncFileIO:
        if self._file is None:
            file = await aiofiles.open(self.path, "ab+", buffering=0, executor=self._thread)
            self._file = file
            self._size = await file.seek(0, os.SEEK_END)
            if self._size:
                await file.seek(-1, os.SEEK_END)
                if await file.read(1) != b"\n":
                    self._lead = b"\n"
        return self._file

    async def _mend(self, file: AsyncFileIO) -> None:
        if self._is_torn:
            await file.truncate(self._size)
            self._is_torn = False

    async def __aenter__(self) -> Self:
        """Return this; the file is opened when there is something to write."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        try:
            if self._file is not None:
                await self._file.close()
        finally:
            self._thread.shutdown(wait=False)
