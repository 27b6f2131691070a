"""The program of a worker process that runs agents, one episode at a time.

Started by `launch.agent_process` as ``python -m areal_agent.launch.agent_worker FD``. It ends when
the socket closes. When the driver is gone, it and all that its agents started are killed.
"""

import json
import os
import shutil
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from areal_agent.config.inference import EPISODE_ENV
from areal_agent.errors import RewardError
from areal_agent.launch.described import describe
from areal_agent.launch.hosted_agent import HostedAgent, load_agent
from areal_agent.launch.json_frames import Message, encode, read_message
from areal_agent.lifeline import watch_parent

_MAX_ANSWER_BYTES = 16 << 20


class AgentHost:
    """Answers the driver's messages: imports agents, runs episodes."""

    def __init__(self) -> None:
        self._agents: dict[str, HostedAgent] = {}

    def answer(self, message: Message) -> Message:
        """Do what a message asks. Whatever an agent raises is an answer as well."""
        try:
            agent = self._agent(message["agent"])
            if "data" not in message:
                return {"value": None}
            url, key = message["base_url"], message["api_key"]
            with episode_environment(url, key):
                return {"value": agent(message["data"], base_url=url, api_key=key)}
        except BaseException as error:  # noqa: BLE001 - SystemExit too ends an episode, not us
            return {"error": describe(error)}

    def _agent(self, spec: dict[str, Any]) -> HostedAgent:
        name = json.dumps([spec["use"], spec["args"], spec["base"]])
        if name not in self._agents:
            sys.path[:] = spec["sys_path"]
            self._agents[name] = load_agent(spec["use"], spec["args"], Path(spec["base"]))
        return self._agents[name]


@contextmanager
def episode_environment(base_url: str, api_key: str) -> Generator[None]:
    """Lead clients of the body to the gateway; environment and folders are as before afterwards."""
    variables, folder = dict(os.environ), os.getcwd()
    host = urlsplit(base_url).hostname or ""
    direct = ",".join(filter(None, (variables.get("NO_PROXY", variables.get("no_proxy")), host)))
    values = {name: base_url if name.endswith("_URL") else api_key for name in EPISODE_ENV}
    os.environ.update(values, NO_PROXY=direct, no_proxy=direct)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        _empty(Path(variables["TMPDIR"]))


def answer_bytes(answer: Message) -> bytes:
    """Return an answer's bytes; a return value that is too large is no reward."""
    data = encode(answer)
    if len(data) <= _MAX_ANSWER_BYTES:
        return data
    size = f"expected a reward, got a value of {len(data)} bytes"
    return encode({"error": describe(RewardError(size))})


def _empty(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def main() -> None:
    """Serve until the driver closes the socket whose number is the first argument."""
    watch_parent(whole_group=True)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    sys.argv[1:] = []  # agents may read it
    host = AgentHost()
    with connection, connection.makefile("rb") as messages:
        while (message := read_message(messages)) is not None:
            connection.sendall(answer_bytes(host.answer(message)))


if __name__ == "__main__":
    main()
