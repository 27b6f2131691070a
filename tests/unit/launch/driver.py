"""A driver with two servers; prints what it started, then waits to be killed."""

import asyncio
import signal
import sys
from pathlib import Path

from areal_agent.config.inference import ServerConfig
from areal_agent.launch.local import launch_embedded_servers


async def drive(folder: Path) -> None:
    async with launch_embedded_servers(
        ServerConfig(),
        folder,
        n_servers=2,
        log_dir=folder,
        control_key="key",
        command=(sys.executable, str(Path(__file__).with_name("dummy_server.py"))),
    ) as group:
        print(*(f"{e.pid}:{e.port}" for e in group.endpoints), flush=True)
        await asyncio.sleep(600)


# A shell's background job starts with SIGINT ignored, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(drive(Path(sys.argv[1])))
