"""How a running job is asked for a report: a socket that one thread of the job answers.

The folder of a run holds ``live.json`` while it goes on: process, host, and the socket's path. The
socket lies in a folder of its own that only its owner can enter, because the path of one must be
short.
"""

import json
import os
import platform
import select
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from areal_agent.errors import ArealAgentError, ConfigError
from areal_agent.rollout.stall_report import StallReport

LIVE_FILE = "live.json"
REPORT_FILE = "stall.json"
LONGEST_FOLDER = 64
"""Of characters; the path of a socket may have 104 on some systems."""
ANSWER_SECONDS = 10.0
"""How long either side waits for the other."""


class StallSocket:
    """Entered, it can be asked; `wait` answers. Left, nothing of it is on the disk."""

    def __init__(self, run: Path, report: Callable[[], StallReport]) -> None:
        """Take the run's folder, and what makes a report."""
        self._live = run / LIVE_FILE
        self._report = report
        self._folder: Path | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        """Listen, and say where."""
        short = len(tempfile.gettempdir()) <= LONGEST_FOLDER
        self._folder = Path(tempfile.mkdtemp(prefix="areal-agent-", dir=None if short else "/tmp"))
        path = self._folder / "stall"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen()
        facts = {"pid": os.getpid(), "host": platform.node(), "socket": str(path)}
        with os.fdopen(os.open(self._live, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            json.dump(facts, f)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Be gone."""
        assert self._socket is not None
        assert self._folder is not None
        self._socket.close()
        self._live.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self, seconds: float) -> None:
        """Let this time pass; answer who asks meanwhile, one at a time."""
        assert self._socket is not None
        readable, _, _ = select.select([self._socket], [], [], seconds)
        if not readable:
            return
        with suppress(OSError):  # whoever asked has gone
            asker, _ = self._socket.accept()
            with asker:
                asker.settimeout(ANSWER_SECONDS / 2)
                asker.sendall(self._report().to_json().encode())


class Answer(NamedTuple):
    """What became of a question."""

    report: StallReport | None
    """Of the running job; else the last one that was written, if one was."""
    not_running: str
    """Why the job itself gave none; empty: it did."""


def ask(run: Path) -> Answer:
    """Ask the job of a run folder for a report.

    Raises:
        ConfigError: it is no run folder.
        ArealAgentError: the job runs, and does not answer.
    """
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"expected the folder of a run, which has a config.yaml, got {run}")
    try:
        live: dict[str, Any] = json.loads((run / LIVE_FILE).read_text(encoding="utf-8"))
        pid, host, path = int(live["pid"]), str(live["host"]), str(live["socket"])
    except FileNotFoundError:
        return Answer(_last(run), f"the run in {run} is not running, or is still starting")
    except (ValueError, KeyError, TypeError):
        return Answer(_last(run), f"{run / LIVE_FILE} cannot be read: is the run starting?")
    try:
        return Answer(StallReport.from_json(_received(path)), "")
    except (FileNotFoundError, ConnectionRefusedError):
        where = "" if host == platform.node() else f" on {host}: ask there"
        if where:
            return Answer(_last(run), f"the run in {run} is process {pid}{where}")
        return Answer(_last(run), f"the run in {run} is not running: its process {pid} is gone")
    except (OSError, ValueError) as error:
        raise ArealAgentError(
            f"the run in {run} (process {pid}) does not answer: {type(error).__name__}: {error}; "
            f"its last report, if there is one, is {run / REPORT_FILE}"
        ) from error


def _received(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ANSWER_SECONDS)
        asking.connect(path)
        parts: list[bytes] = []
        while part := asking.recv(65536):
            parts.append(part)
    return b"".join(parts)


def _last(run: Path) -> StallReport | None:
    with suppress(OSError, ValueError):
        return StallReport.from_json((run / REPORT_FILE).read_bytes())
    return None
