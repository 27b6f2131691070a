"""Episodes to be recorded."""

from rollout_support import Calls

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters, ModelRequest

GCONFIG = GenerationHyperparameters(max_new_tokens=8, max_tokens=64)


def text(ids):
    return "".join(chr(97 + i) for i in ids)


async def ran(workflow, engine=None, data=None, *, seconds=5, **facts):
    spec = EpisodeSpec("0:3:1", "0:3", seed=5, epoch=0, index=3, sample=1, **facts)
    run = await run_episode(
        workflow, engine or FakeEngine(), data or {}, spec, limits=LimitsConfig(seconds=seconds)
    )
    return run.episode


def dialogue(*replies):
    """An engine that says these in order, and a workflow that goes on from one to the next."""
    left = list(replies)

    async def episode(engine, data):
        ids, said, responses = [1, 2], [{"role": "user", "content": "?"}], []
        for _ in replies:
            request = ModelRequest(ids, GCONFIG, metadata={"messages": list(said)})
            responses.append(await engine.agenerate(request))
            ids = [*ids, *responses[-1].output_tokens, 3]
            said += [{"role": "assistant", "content": "!"}, {"role": "tool", "content": "3"}]
        return Trajectory.from_turns(responses, 0.75)

    return Calls(episode), FakeEngine(lambda request: Reply(left.pop(0), [-1 / 3] * 3))
