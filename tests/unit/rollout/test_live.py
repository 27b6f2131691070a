"""What an episode waits for is noted while it waits, and only on that episode."""

import asyncio

from areal_agent.aio import collect
from areal_agent.rollout.live import LiveEpisode, doing, enter_episode


async def test_waits_nest_and_belong_to_their_episode():
    inside = asyncio.Event()
    go_on = asyncio.Event()
    episodes = [LiveEpisode("0:0:0", "0:0"), LiveEpisode("0:0:1", "0:0")]

    async def run(episode: LiveEpisode) -> None:
        enter_episode(episode)
        with doing("tool search"), doing(f"model call {episode.id}"):
            inside.set()
            await go_on.wait()
        assert episode.doing == "its own code"

    async def look() -> None:
        await inside.wait()
        await asyncio.sleep(0)
        assert [e.doing for e in episodes] == ["model call 0:0:0", "model call 0:0:1"]
        assert all(e.since >= e.started for e in episodes)
        go_on.set()

    await collect([*map(run, episodes), look()])


def test_outside_of_episodes_nothing_is_noted():
    with doing("model call 0"):
        pass
