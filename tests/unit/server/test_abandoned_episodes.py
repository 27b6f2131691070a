"""S23: an episode that is cut off gives its server's slot back, through gateway and client."""

from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from server_support import CONTROL_KEY, served, until
from tiny_models import byte_tokenizer, make_model

from areal_agent.config.rollout_limits import LimitsConfig
from areal_agent.data.chat import ChatFormat
from areal_agent.gateway.gateway import Gateway
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.net.clients import HttpClients
from areal_agent.rollout.adapters import AgentWorkflow
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.types import GenerationHyperparameters

GCONFIG = GenerationHyperparameters(max_new_tokens=240, max_tokens=256)
SPEC = EpisodeSpec(id="e", prompt_id="p", seed=1, epoch=0, index=0)


class Asks:
    async def run(self, data: dict[str, Any], client: AsyncOpenAI) -> float:
        await client.completions.create(
            model="m",
            prompt=[5, 6, 7],
            max_tokens=data["n"],
            extra_body={"ignore_eos": True},
        )
        return 1.0


async def test_a_timed_out_episode_frees_the_only_slot(tmp_path: Path) -> None:
    async with (
        served(make_model(tmp_path / "model"), max_running_requests=1) as server,
        HttpClients() as clients,
        HttpInferenceEngine(
            [server.url], clients=clients, model="tiny", control_key=CONTROL_KEY
        ) as engine,
        Gateway(ChatFormat(byte_tokenizer()), model="tiny") as gateway,
    ):
        server.model.hold_at = 3
        workflow = AgentWorkflow(Asks(), gateway, GCONFIG)

        run = await run_episode(
            workflow, engine, {"n": 240}, SPEC, limits=LimitsConfig(seconds=1.0)
        )
        assert run.episode.outcome == "timeout"
        await server.model.wait_held()  # in the midst of the reply that nobody wants any more
        await until(lambda: server.command_waits)
        server.model.go_on.set()
        run = await run_episode(workflow, engine, {"n": 2}, SPEC, limits=LimitsConfig(seconds=20))
        assert (run.episode.outcome, run.output_tokens) == ("truncated", 2)
        assert server.model.steps < 10
        assert len(gateway.sessions) == 0
