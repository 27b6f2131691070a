"""The program of a worker process that runs reward functions, one call at a time.

Started by `launch.reward_process` as ``python -m areal_agent.launch.reward_worker FD MEMORY CPU``:
bytes of memory and seconds of CPU time for a call, 0 for no limit. Functions run on the main
thread. It ends when the socket closes; when the driver is gone, it and all that its functions
started are killed. It imports little, so that it starts fast.
"""

import faulthandler
import inspect
import io
import os
import pickle  # noqa: TID251 - reads only what its own parent wrote, see `launch.shipping`
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from areal_agent.launch.described import describe
from areal_agent.launch.json_frames import Message, encode, read_message
from areal_agent.lifeline import watch_parent
from areal_agent.rewarding import as_reward

WORKER_ENV = "AREAL_AGENT_REWARD_WORKER"
"""Set in workers, where no run and no worker may be started."""


class RewardHost:
    """Answers the driver's messages: imports functions, calls them."""

    def __init__(self, memory_bytes: int, cpu_seconds: float) -> None:
        self._memory_bytes = memory_bytes
        self._cpu_seconds = cpu_seconds
        self._functions: dict[str, Callable[..., Any]] = {}
        self._data_bytes = 0

    def answer(self, message: Mapping[str, Any], body: bytes) -> Message:
        """Do what a message asks. Whatever a function raises is an answer as well."""
        process = os.getpid()
        try:
            if "load" in message:
                sys.path[:] = message["sys_path"]
                # The first call's arguments come too: what they import costs no call its time.
                file = io.BytesIO(body)
                function = pickle.load(file)  # noqa: S301 - see above
                pickle.load(file)  # noqa: S301
                self._functions[message["load"]] = function
                self._data_bytes = data_bytes()
                return {}
            return self._call(self._functions[message["call"]], body)
        except BaseException as error:  # noqa: BLE001 - SystemExit too is an answer
            return {"error": describe(error), "retires": isinstance(error, MemoryError)}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if os.getpid() != process:
                os._exit(1)  # a function has forked, and its child came back here

    def _call(self, function: Callable[..., Any], body: bytes) -> Message:
        args, kwargs = pickle.loads(body)  # noqa: S301 - see above
        used, memory = data_bytes(), self._memory_bytes
        with _limited(used + memory if used and memory else 0, self._cpu_seconds):
            began = time.perf_counter()
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = _awaited(value)
            seconds = time.perf_counter() - began
        reward = None if value is None else as_reward(value)
        leaks = memory > 0 and used > self._data_bytes + memory
        return {"value": reward, "seconds": seconds, "retires": leaks}


def _awaited(value: Any) -> Any:
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


@contextmanager
def _limited(most_data_bytes: int, cpu_seconds: float) -> Generator[None]:
    """Limit the process's data, and the CPU time of the body, where they are not 0."""
    limited = (resource.RLIMIT_DATA, resource.RLIMIT_CPU)
    before = {which: resource.getrlimit(which) for which in limited}
    if most_data_bytes:
        _lower(resource.RLIMIT_DATA, most_data_bytes)
    if cpu_seconds:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _lower(resource.RLIMIT_CPU, -int(-(used.ru_utime + used.ru_stime + cpu_seconds) // 1))
    try:
        yield
    finally:
        for which, limits in before.items():
            resource.setrlimit(which, limits)


def _lower(which: int, limit: int) -> None:
    soft, hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(which, (limit, hard))


def data_bytes() -> int:
    """Return what counts towards RLIMIT_DATA now; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def _read_exactly(file: BinaryIO, n: int) -> bytes:
    body = file.read(n)
    if len(body) < n:
        raise EOFError
    return body


def main() -> None:
    """Serve until the driver closes the socket whose number is the first argument."""
    watch_parent(whole_group=True)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    host = RewardHost(int(sys.argv[2]), float(sys.argv[3]))
    sys.argv[1:] = []  # functions may read it
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable()
    with connection, connection.makefile("rb") as messages:
        while (message := read_message(messages)) is not None:
            body = _read_exactly(messages, message["bytes"])
            connection.sendall(encode(host.answer(message, body)))


if __name__ == "__main__":
    main()
