"""Stands in for ``areal-agent serve``: binds a port, publishes it, and waits for its end."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from areal_agent.lifeline import watch_parent


def main() -> None:
    mode = os.environ.get("DUMMY_MODE", "")
    if mode == "late":
        time.sleep(1.0)
    watch_parent(grace_seconds=0.5)
    parser = argparse.ArgumentParser()
    for flag in ("--host", "--port", "--ready-file", "--instance-id"):
        parser.add_argument(flag)
    options, _ = parser.parse_known_args()
    print("dummy with", os.environ["OMP_NUM_THREADS"], "threads", sys.argv[1:])
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "fail":
        sys.exit("cannot load the model: no such folder")
    if mode == "silent":
        signal.pause()
    grandchild = 0
    if mode == "family":
        program = "import time; time.sleep(600)"
        grandchild = subprocess.Popen([sys.executable, "-c", program]).pid
    listener = socket.socket()
    try:
        listener.bind((options.host, int(options.port)))
    except OSError as error:
        sys.exit(f"cannot bind {options.host}:{options.port}: {error}")
    listener.listen()
    fields = {
        "host": options.host,
        "port": listener.getsockname()[1],
        "pid": os.getpid(),
        "instance_id": "somebody else" if mode == "stranger" else options.instance_id,
        "grandchild": grandchild,
    }
    ready = Path(options.ready_file)
    temporary = ready.with_suffix(".tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(fields, file)
    temporary.rename(ready)
    while True:
        signal.pause()


main()
