"""S23: thousands of episodes leave nothing behind: no session, no memory."""

import gc
from typing import Any

import psutil
import pytest
from gateway_support import GCONFIG, USER, stage

from areal_agent.aio import collect
from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.adapters import AgentWorkflow
from areal_agent.rollout.episode import EpisodeSpec, run_episode

EPISODES, WARM = 5000, 500
BODY: dict[str, Any] = {"model": "m", "messages": [USER]}


class Asks:
    """One call, without an SDK in between: that one would cost more than all else here."""

    async def run(self, data: dict[str, Any], http_client: Any, api_key: str) -> float:
        answer = await http_client.post(
            "http://any/v1/chat/completions",
            json=BODY,
            headers={"authorization": f"Bearer {api_key}"},
        )
        return float(answer.status_code == 200)


@pytest.mark.timeout(300)
async def test_memory_and_sessions_are_flat_after_the_first_hundreds() -> None:
    async with stage() as playing:
        workflow = AgentWorkflow(Asks(), playing.gateway, GCONFIG)
        open_sessions = 0

        async def play(numbers: range) -> None:
            nonlocal open_sessions
            for i in numbers:
                spec = EpisodeSpec(id=f"{i}", prompt_id="p", seed=1, epoch=0, index=i)
                run = await run_episode(
                    workflow, playing.engine, {}, spec, limits=LimitsConfig(seconds=60)
                )
                assert run.episode.reward == 1.0
                open_sessions = max(open_sessions, len(playing.gateway.sessions))
                playing.engine.requests.clear()  # a fake's own notes

        async def some(start: int, end: int) -> tuple[int, int]:
            await collect([play(range(start + k, end, 16)) for k in range(16)])
            assert len(playing.gateway.sessions) == 0
            gc.collect()
            return len(gc.get_objects()), psutil.Process().memory_info().rss

        warm = await some(0, WARM)
        after = await some(WARM, EPISODES)
    assert open_sessions <= 16
    objects, grown = after[0] - warm[0], after[1] - warm[1]
    assert objects < 0.1 * (EPISODES - WARM), f"{objects} objects are left"
    # What the allocator keeps of cycles that wait for a collection varies; a session is 20 KB.
    assert grown < 32 << 20, f"{grown / (EPISODES - WARM):.0f} bytes an episode"
