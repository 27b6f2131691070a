"""What can be hosted in processes, and what is refused before anything runs."""

import os
from pathlib import Path
from typing import Any

import pytest
from gateway_support import GCONFIG, make_chat
from hosted_agents import Twice, by_environment

from areal_agent.config.experiment import UseConfig
from areal_agent.config.inference import AgentWorkersConfig
from areal_agent.config.load import parse_config
from areal_agent.errors import ConfigError
from areal_agent.launch.agent_pool import AgentPool
from areal_agent.launch.hosted_agent import load_agent
from areal_agent.rollout.adapters import FunctionAgent
from areal_agent.trainer.parts import make_workflow, process_agent

HERE = Path(__file__).parent


async def naps(data: dict[str, Any], nap: float) -> float:
    return nap


async def start(pool: AgentPool, logs: Path) -> None:
    async with pool.running(logs):
        pass


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_module_here\n", "No module named 'no_such_module_here'"),
        ("def broken(:\n", "SyntaxError"),
        ("import os, sys\nprint('dying')\nos._exit(4)\n", "ended with exit code 4"),
        ("import time\ntime.sleep(600)\n", "not imported within 3 s"),
    ],
)
async def test_an_agent_that_cannot_be_imported_is_a_settings_error(
    tmp_path: Path, source: str, told: str
) -> None:
    (tmp_path / "agent.py").write_text(source)
    seconds = 3.0 if "sleep" in source else 100.0
    pool = AgentPool(AgentWorkersConfig(startup_timeout_seconds=seconds))
    pool.agent("agent.py:solve", {}, tmp_path)
    with pytest.raises(ConfigError, match=r"agent\.py:solve") as error:
        await start(pool, tmp_path)
    assert told in str(error.value)
    if "no_such" in source:
        assert f'File "{tmp_path / "agent.py"}", line 1' in str(error.value)
    if "dying" in source:
        assert "    dying" in str(error.value)


async def test_an_agent_named_later_is_checked_as_well(tmp_path: Path) -> None:
    pool = AgentPool(AgentWorkersConfig())
    process_agent("hosted_agents.py:Twice", pool, base=HERE)
    async with pool.running(tmp_path):
        process_agent("hosted_agents.py:Twicee", pool, base=HERE)
        with pytest.raises(ConfigError, match="did you mean 'Twice'"):
            await pool.check()


@pytest.mark.parametrize(
    ("use", "args", "told"),
    [
        ("Picky", {}, "names engine, which a worker process does not have"),
        ("Workflow", {}, "RolloutWorkflow, which works with the run's own engine"),
        ("Idle", {}, "to give an agent with `run"),
        ("USER", {}, "expected an agent, its class or a function"),
        ("Twice", {"rewad": 1}, "does not take these args"),
        ("by_environment", {"facto": 1}, "does not take these args"),
    ],
)
def test_what_is_no_agent_is_refused(use: str, args: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_agent(f"hosted_agents.py:{use}", args, HERE)


@pytest.mark.parametrize("what", [Twice, Twice(), by_environment, "hosted_agents.py:Twice"])
def test_inline_a_sync_agent_is_told_of_processes(what: object) -> None:
    with pytest.raises(ConfigError, match=r"not async.*set gateway.hosting to subprocess"):
        make_workflow(what, chat=make_chat(), gconfig=GCONFIG, base=HERE)


async def test_inline_an_async_function_is_an_agent() -> None:
    use = UseConfig(use=f"{__file__}:naps", args={"nap": 0.5})
    agent = make_workflow(use, chat=make_chat(), gconfig=GCONFIG, base=HERE)
    assert isinstance(agent, FunctionAgent)
    assert await agent.run({}) == 0.5


@pytest.mark.parametrize("what", [Twice, Twice(), by_environment])
def test_an_object_has_no_name_for_a_process(what: object) -> None:
    pool = AgentPool(AgentWorkersConfig())
    with pytest.raises(ConfigError, match=r"given by name, as 'module:Name' or 'file.py:Name'"):
        process_agent(what, pool, base=HERE)
    with pytest.raises(ConfigError, match="args must be what JSON can hold"):
        process_agent(UseConfig(use="a.py:A", args={"x": object()}), pool, base=HERE)


async def test_a_variable_that_is_handed_on_must_be_there(tmp_path: Path) -> None:
    assert "NOT_HERE" not in os.environ
    pool = AgentPool(AgentWorkersConfig(env={"NOT_HERE": None}))
    with pytest.raises(ConfigError, match=r"workers\.env\.NOT_HERE is null"):
        await start(pool, tmp_path)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{workers: {n: 2}}", "hosting is inline, which starts no worker processes"),
        ("{hosting: subprocess, workers: {env: {OPENAI_API_KEY: x}}}", "set for each episode"),
        ("{hosting: subprocess, workers: {env: {'A=B': x}}}", "names of environment variables"),
    ],
)
def test_settings_that_cannot_be_meant(section: str, told: str) -> None:
    text = "experiment_name: a\nmodel: m\ntrain_dataset: {use: a.jsonl}\ntotal_train_steps: 1\n"
    with pytest.raises(ConfigError, match=told):
        parse_config(f"{text}gateway: {section}\n", source="x.yaml")
