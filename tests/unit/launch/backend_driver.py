"""A driver with one trainer's worker; prints its pid, then waits to be killed."""

import asyncio
import sys
from pathlib import Path

from areal_agent.backends.process import ProcessBackend
from areal_agent.config.training import TrainEngineConfig


async def drive(folder: Path) -> None:
    async with ProcessBackend(
        TrainEngineConfig(),
        Path("model"),
        total_optimizer_steps=1,
        seed=1,
        log=folder / "trainer.log",
        command=(sys.executable, str(Path(__file__).with_name("fake_worker.py"))),
    ) as backend:
        print(backend.pid, flush=True)
        await backend.export(folder / "hang")


asyncio.run(drive(Path(sys.argv[1])))
