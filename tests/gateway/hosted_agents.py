"""Agents that worker processes import in tests."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAI

USER: Any = {"role": "user", "content": "hi"}


class Twice:
    """A sync agent of two turns."""

    def __init__(self, reward: float = 1.0) -> None:
        self.reward = reward

    def run(self, data: dict[str, Any], client: OpenAI) -> float:
        messages = [USER]
        for _ in range(2):
            made = client.chat.completions.create(model="m", messages=messages)
            messages += [made.choices[0].message.model_dump(exclude_none=True), USER]
        return self.reward


class Asynchronous:
    async def run(self, data: dict[str, Any], client: AsyncOpenAI, **extra: Any) -> float:
        assert sorted(extra) == ["api_key", "base_url"]
        await client.chat.completions.create(model="m", messages=[USER])
        return 1.0


def ask() -> str:
    """As programs do that know nothing of a gateway: all from the environment."""
    with OpenAI() as client:
        return client.chat.completions.create(model="m", messages=[USER]).id


def by_environment(data: dict[str, Any], factor: float = 1.0) -> dict[str, float]:
    return {ask(): data["x"] * factor}


def returns(data: dict[str, Any]) -> Any:
    ask()
    if data["what"] == "huge":
        return [1 / 3] * 1_000_000
    if data["what"] == "object":
        return object()
    if data["what"] == "numpy":
        import numpy as np

        return np.float32(0.5)
    if data["what"] == "list of numpy":
        import numpy as np

        return [np.int64(1)]
    return {"nan": float("nan"), "text": "1.0", "lambda": lambda: 1, "none": None, "true": True}[
        data["what"]
    ]


def tells(data: dict[str, Any]) -> float:
    """Changes what it can, after it has told what it found."""
    names = [n for n in os.environ if n.endswith(("_KEY", "_URL"))]
    found = sorted([*names, *(n for n in os.environ if n.startswith(("MINE", "CHANGED")))])
    temporary = list(Path(tempfile.gettempdir()).iterdir())
    print(f"pid {os.getpid()} found {' '.join(found)} in {os.getcwd()}, temporary {temporary}")
    print("on stderr", file=sys.stderr)
    os.write(1, b"on file descriptor 1\n")
    ask()
    os.environ["CHANGED"] = "1"
    os.environ.pop("PATH", None)
    Path(tempfile.gettempdir(), "left").touch()
    os.chdir("/")
    return 1.0


def ends(data: dict[str, Any]) -> float:
    how = data["how"]
    ask()
    print(f"the last words before {how}", file=sys.stderr)
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "sys.exit":
        sys.exit(3)
    if how == "raise":
        raise KeyError("oops")
    if how == "fork":  # the child holds the socket open
        if os.fork() == 0:
            time.sleep(600)
        os._exit(8)
    return 1.0


def hangs(data: dict[str, Any]) -> float:
    """Never returns, and has a child that would outlive it."""
    child = subprocess.Popen(["sleep", "600"])
    made = Path(f"{data['pids']}.made")
    made.write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
    made.rename(data["pids"])
    while True:
        pass


async def naps(data: dict[str, Any]) -> float:
    await asyncio.sleep(data["nap"])
    return 1.0


def rewards(data: dict[str, Any], base_url: str) -> None:
    ask()
    url = f"{base_url.removesuffix('/v1')}/rl/set_reward"
    httpx.post(url, json={"reward": 0.25}).raise_for_status()


class Picky:
    def run(self, data: dict[str, Any], engine: Any) -> float:
        return 0.0


class Workflow:
    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> None: ...


class Idle:
    """No agent at all."""
