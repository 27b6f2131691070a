"""A driver whose one worker process runs an agent that never returns; waits to be ended."""

import asyncio
import signal
import sys
from pathlib import Path

from areal_agent.config.inference import AgentWorkersConfig
from areal_agent.launch.agent_pool import AgentPool


async def drive(folder: Path) -> None:
    pool = AgentPool(AgentWorkersConfig(n=1))
    agent = pool.agent("hosted_agents.py:hangs", {}, Path(__file__).parent)
    async with pool.running(folder), pool.lend() as process:
        data = {"pids": str(folder / "pids")}
        await process.run(agent, data, base_url="http://127.0.0.1:9/v1", api_key="key")


# A shell's background job starts with SIGINT ignored, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(drive(Path(sys.argv[1])))
