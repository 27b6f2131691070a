"""A training run as a process of its own: started, watched, signalled, and cleared away."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import yaml

HERE = Path(__file__).parent
TASK = HERE / "loop_task.py"
COMMAND = Path(sys.executable).with_name("areal-agent")
MARK = "AREAL_AGENT_TEST_MARK"
"""In the environment of a driver, and so of all that it starts, whoever their parent becomes."""

Settings = dict[str, Any]


def settings(root: Path, model: Path, **changes: Any) -> Settings:
    """Settings of a run of seconds; `changes` replace, with sections merged."""
    base: Settings = {
        "experiment_name": "loop",
        "fileroot": str(root / "runs"),
        "model": str(model),
        "workflow": {"use": "rlvr", "args": {"reward_fn": f"{HERE}/loop_rewards.py:parity"}},
        "train_dataset": {"use": f"{TASK}:problems", "args": {"n": 64}},
        "total_train_steps": 2,
        "gconfig": {"n_samples": 4, "max_new_tokens": 8, "max_tokens": 64},
        "eval_gconfig": {"max_new_tokens": 8, "max_tokens": 64},
        "rollout": {"consumer_batch_size": 4, "max_concurrent_rollouts": 32},
        "actor": {"ppo_n_minibatches": 2, "optimizer": {"lr": 1e-2}},
    }
    return _merged(base, changes)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    out = dict(base)
    for name, value in changes.items():
        old = out.get(name)
        both = isinstance(value, Mapping) and isinstance(old, Mapping) and "use" not in value
        out[name] = _merged(old, value) if both else value
    return out


def write_settings(root: Path, values: Settings) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / "config.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


class Driver:
    """One ``areal-agent train`` with its descendants. Left: all of them are gone."""

    def __init__(
        self, root: Path, values: Settings, *args: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = Path(values["fileroot"]) / values["experiment_name"] / "trial"
        self._argv = [str(COMMAND), "train", str(write_settings(root, values)), *args]
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {}), MARK: self.mark}
        self._out, self._err = root / "stdout.txt", root / "stderr.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._env,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.alive():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._started().wait(10)

    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8")

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))

    def alive(self) -> list[psutil.Process]:
        """The driver and its descendants that run, orphans included."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def child(self, text: str) -> psutil.Process:
        """The one descendant with `text` in its command line."""
        found = [process for process in self.alive() if text in " ".join(process.cmdline())]
        assert len(found) == 1, found
        return found[0]

    def server(self) -> psutil.Process:
        return self.child(str(self.folder / "logs" / "server-0.json"))

    def worker(self) -> psutil.Process:
        return self.child("areal_agent.backends.worker")

    def until(
        self, condition: Callable[[], bool], *, seconds: float = 200.0, poll: float = 0.01
    ) -> None:
        """Wait for what the run does; fail at once when it ends before."""
        deadline = time.monotonic() + seconds
        while not condition():
            code = self._started().poll()
            assert code is None, f"ended with {code} before: {self.said()}"
            assert time.monotonic() < deadline, f"waited in vain: {self.said()}"
            time.sleep(poll)

    def until_step(self, n: int) -> None:
        """Wait until `n` steps have ended, so that the next one is under way."""
        metrics = self.folder / "metrics.jsonl"
        self.until(lambda: metrics.is_file() and metrics.read_bytes().count(b"\n") >= n)

    def signal(self, number: int) -> None:
        """Send a signal as a terminal or a supervisor does: Ctrl-C goes to the whole group."""
        pid = self._started().pid
        if number == signal.SIGINT:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)

    def wait(self, seconds: float = 200.0) -> int:
        """Wait for the driver's end; its exit code."""
        try:
            return self._started().wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds} s: {self.said()}") from None

    def wait_gone(self, seconds: float) -> None:
        """Wait until no process of the run is left."""
        deadline = time.monotonic() + seconds
        while left := self.alive():
            assert time.monotonic() < deadline, f"left: {left}"
            time.sleep(0.05)

    def said(self) -> str:
        return f"\n--- stdout\n{self.stdout[-2000:]}\n--- stderr\n{self.stderr[-6000:]}"

    def _started(self) -> "subprocess.Popen[bytes]":
        assert self.process is not None
        return self.process

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return process.environ().get(MARK) == self.mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could take the port now."""
    import socket

    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError:
            return False
    return True
