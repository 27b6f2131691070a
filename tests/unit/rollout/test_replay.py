"""Replay: the same code on a record does the same, bit for bit; other code is told what differs."""

import asyncio
import json

import pytest
from record_support import GCONFIG, ran, text
from rollout_support import Calls

from areal_agent import workflow_context
from areal_agent.errors import ServerError
from areal_agent.rollout.episode import EpisodeSpec
from areal_agent.rollout.episode_record import episode_record
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.plain import any_json
from areal_agent.rollout.replay import replay_episode
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import ModelRequest


def recorded(episode, split="train"):
    return json.loads(any_json(episode_record(episode, text, split=split, step=0)))


async def replayed(function, record, **changes):
    async with asyncio.timeout(20):
        return await replay_episode(Calls(function), record, text, patience_seconds=0.05, **changes)


def noisy_engine():
    """Says something else each time, at a length that varies."""
    n = 0

    def script(request):
        nonlocal n
        n += 1
        return Reply([n % 20, *range(n % 5)], [-1 / (3 + n + i) for i in range(1 + n % 5)])

    return FakeEngine(script, version=7)


async def check(function, engine=None, data=None, *, outcome="ok"):
    """Record an episode, and replay it."""
    episode = await ran(Calls(function), engine or noisy_engine(), data)
    assert episode.outcome == outcome, episode.failure
    record = recorded(episode)
    found = await replayed(function, record)
    assert (found.verdict, found.difference, found.why) == ("same", None, "")
    return record


def request(*ids, **changes):
    return ModelRequest(list(ids), GCONFIG.new(**changes))


async def agent(engine, data):
    """Uses everything that an episode may ask for."""

    async def search(query, limit=1):
        return [query] * limit + [{"at": asyncio.get_running_loop().time()}]

    rng = workflow_context.random()
    responses = [await engine.agenerate(request(1, rng.randrange(20)))]
    for turn in range(3):
        hits = await workflow_context.tool(search, text(responses[-1].output_tokens), limit=turn)
        stamp = int(workflow_context.now() * 1e6) % 20
        ids = [*responses[-1].input_tokens, *responses[-1].output_tokens, stamp]
        ids.append(int(hits[-1]["at"] * 1e6) % 20)
        responses.append(await engine.agenerate(request(*ids, max_new_tokens=6 + turn)))
    return Trajectory.from_turns(responses, rng.random())


async def test_an_episode_that_asks_for_everything_is_repeated():
    record = await check(agent)
    assert (len(record["turns"]), len(record["tools"]), len(record["clock"])) == (4, 3, 3)


async def test_the_row_of_the_dataset_is_given_again_and_is_not_shared():
    async def episode(engine, data):
        data["seen"].append(1)
        response = await engine.agenerate(request(*data["seen"], data["x"]))
        return Trajectory.from_response(response, 1.0)

    record = await check(episode, data={"x": 5, "seen": [2]})
    assert record["data"] == {"x": 5, "seen": [2]}


async def test_calls_at_once_get_their_own_replies_and_end_in_the_recorded_order():
    order = []

    async def episode(engine, data):
        async def branch(n):
            first = await engine.agenerate(request(1, 1, n % 2))
            order.append(n)
            return await engine.agenerate(request(2, n, len(order) % 20, *first.output_tokens))

        order.clear()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(n)) for n in range(4)]
        found = [task.result() for task in tasks]
        return [Trajectory.from_response(one, float(n)) for n, one in enumerate(found)]

    lengths = iter([9, 2, 7, 4, 1, 1, 1, 1])
    engine = FakeEngine(lambda request: Reply([3] * next(lengths)))
    episode_ = await ran(Calls(episode), engine)
    then = list(order)
    assert then != sorted(then)
    record = recorded(episode_)
    assert (await replayed(episode, record)).verdict == "same"
    assert order == then


async def test_the_first_to_answer_wins_again_and_the_others_are_given_up():
    async def episode(engine, data):
        tasks = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.agenerate(request(1, n))) for n in range(3)]
            done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
        (first,) = done
        return Trajectory.from_response(first.result(), 1.0)

    lengths = iter([9, 2, 7])
    record = await check(episode, FakeEngine(lambda request: Reply([3] * next(lengths))))
    assert len(record["turns"]) == 1
    assert [call["at"][1] for call in record["failed_calls"]] == [None, None]


class TooSlowError(Exception):
    """A user's error."""

    def __init__(self, seconds, *, url):
        super().__init__(f"{url} took {seconds}")


async def test_failures_of_tools_and_models_are_repeated():
    async def fetch(n):
        raise [KeyError("x"), TooSlowError(3, url="here"), OSError(2, "no such file")][n]

    async def episode(engine, data):
        said = []
        for n in range(3):
            try:
                await workflow_context.tool(fetch, n)
            except (KeyError, TooSlowError, OSError) as error:
                said.append(f"{type(error).__name__}: {error}")
        assert said[0] == "KeyError: 'x'"
        assert said[1].endswith("TooSlowError: here took 3")
        with pytest.raises(ServerError, match="broke"):
            await engine.agenerate(request(1))
        response = await engine.agenerate(request(2))
        return Trajectory.from_response(response, float(len(said)))

    def script(request):
        return ServerError("broke") if request.input_ids == [1] else Reply()

    record = await check(episode, FakeEngine(script))
    assert record["failed_calls"][0]["error"]["type"] == "ServerError"


@pytest.mark.parametrize("outcome", ["workflow_error", "inference_error", "rejected"])
async def test_episodes_that_failed_fail_again(outcome):
    async def episode(engine, data):
        await engine.agenerate(request(1))
        if outcome == "rejected":
            return None
        if outcome == "workflow_error":
            raise ValueError("what is this?")
        await engine.agenerate(request(2))

    def script(request):
        return ServerError("broke") if request.input_ids == [2] else Reply()

    await check(episode, FakeEngine(script), outcome=outcome)


async def differs(before, after, *, engine=None):
    """Record one function, replay another one."""
    record = recorded(await ran(Calls(before), engine or noisy_engine()))
    found = await replayed(after, record)
    assert found.verdict == "differs"
    return found.difference


def asks(*prompts, tools=(), reward=1.0, gconfig=None):
    """An episode of these model calls, with a call of a tool before each."""

    def look(query):
        return query

    def other(query):
        return query

    async def episode(engine, data):
        responses = []
        for n, prompt in enumerate(prompts):
            if n < len(tools) and tools[n]:
                await workflow_context.tool(look if tools[n] != "other" else other, tools[n])
            responses.append(await engine.agenerate(request(*prompt, **(gconfig or {}))))
        return Trajectory.from_response(responses[-1], reward)

    return episode


async def test_another_prompt_is_shown_at_the_first_call_that_has_it():
    found = await differs(asks([1, 2], [1, 3], [1, 4]), asks([1, 2], [1, 5], [1, 6]))
    assert found.what == "model call 1"
    assert (found.recorded, found.now) == ("'bd' (2 tokens)", "'bf' (2 tokens)")


async def test_other_sampling_is_shown():
    found = await differs(asks([1]), asks([1], gconfig={"temperature": 0.5}))
    assert found.recorded == "sampling with temperature 1.0"
    assert found.now == "sampling with temperature 0.5"


async def test_another_seed_is_shown():
    found = await differs(asks([1]), asks([1], gconfig={"seed": 3}))
    assert found.recorded.startswith("sampling with seed ")


async def test_one_call_more_or_less_is_shown():
    found = await differs(asks([1]), asks([1], [2]))
    assert (found.what, found.recorded) == ("model call 1", "no further call")
    found = await differs(asks([1], [2]), asks([1]))
    assert found.what == "a call is missing"
    assert found.recorded == "a model call with 'c'"


async def test_other_arguments_of_a_tool_are_shown():
    found = await differs(asks([1], tools=["cats"]), asks([1], tools=["dogs"]))
    assert found.what == "a call of the tool look"
    assert found.recorded == 'the tool look("cats")'
    assert found.now == 'the tool look("dogs")'
    found = await differs(asks([1], tools=["other"]), asks([1], tools=["cats"]))
    assert found.recorded == 'the tool other("other")'


async def test_a_tool_that_is_called_no_more_is_shown_at_the_next_call():
    found = await differs(asks([1], [2], tools=["cats"]), asks([1], [2]))
    assert found.what == "model call 0"
    assert found.recorded == 'the tool look("cats")'


async def test_an_order_that_was_not_is_shown():
    found = await differs(asks([1], [2]), asks([2], [1]))
    assert (found.what, found.recorded) == ("model call 0", "'b' (1 tokens)")


async def test_another_reward_is_shown():
    found = await differs(asks([1]), asks([1], reward=0.5))
    assert (found.what, found.recorded, found.now) == (
        "the result",
        "row 0: reward 1.0",
        "row 0: reward 0.5",
    )


async def test_code_that_asks_the_world_itself_differs():
    import random
    import time

    async def reads_the_clock(engine, data):
        response = await engine.agenerate(request(1, time.time_ns() % 97, time.time_ns() % 89))
        return Trajectory.from_response(response, random.random())

    found = await differs(reads_the_clock, reads_the_clock)
    assert found.what in {"model call 0", "the result"}


async def test_a_clock_read_more_or_less_is_shown():
    def reads(times):
        async def episode(engine, data):
            for _ in range(times):
                workflow_context.now()
            return Trajectory.from_response(await engine.agenerate(request(1)), 1.0)

        return episode

    found = await differs(reads(1), reads(2))
    assert (found.what, found.now) == ("the time", "it is asked for once more")
    found = await differs(reads(2), reads(1))
    assert found.recorded == "now() was asked for 1 times more"


async def test_what_cannot_be_replayed_says_why():
    async def opaque(engine, data):
        return Trajectory.from_response(await engine.agenerate(request(1)), 1.0)

    record = recorded(await ran(Calls(opaque), data={"image": object()}))
    found = await replayed(opaque, record)
    assert (found.verdict, "JSON cannot hold it" in found.why) == ("skipped", True)
    found = await replayed(opaque, {**record, "schema": 1})
    assert found.verdict == "skipped"

    async def returns_an_object(engine, data):
        await workflow_context.tool(object)
        return Trajectory.from_response(await engine.agenerate(request(1)), 1.0)

    difference = await differs(returns_an_object, returns_an_object)
    assert "it returned what JSON cannot hold" in difference.recorded

    async def scores(engine, data):
        await engine.score([[1, 2]])
        return Trajectory.from_response(await engine.agenerate(request(1)), 1.0)

    assert (await differs(scores, scores)).what == "a call of engine.score"


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_group_was_judged_to_have_earned_is_no_part_of_a_replay(fails):
    async def judge(data, episodes):
        if fails:
            raise ConnectionError("no judge")
        return [episode.reward + 0.5 for episode in episodes]

    ended = []
    workflow = Calls(asks([1]))
    workflow.group_reward = judge
    spec = EpisodeSpec("0:3", "0:3", seed=5, epoch=0, index=3)
    group = GroupedRolloutWorkflow(workflow, 2)
    await group.run(noisy_engine(), {}, spec, on_end=lambda run: ended.append(run.episode))
    for episode in ended:
        record = recorded(episode)
        assert [row["reward"] for row in record["rows"]] == ([] if fails else [1.5])
        assert record["outcome"] == ("reward_error" if fails else "ok")
        assert (await replayed(asks([1]), record)).verdict == "same"
        assert (await replayed(asks([1], reward=0.5), record)).verdict == "differs"


async def test_an_episode_that_was_cut_off_is_replayed_up_to_there():
    async def hangs(engine, data):
        await engine.agenerate(request(1))
        await engine.agenerate(request(2))
        await asyncio.Event().wait()

    def other(engine, data):
        return asks([1], [3])(engine, data)

    episode = await ran(Calls(hangs), noisy_engine(), seconds=0.05)
    assert episode.outcome == "timeout"
    record = recorded(episode)
    assert (await replayed(hangs, record)).verdict == "same"
    found = await replayed(other, record)
    assert found.difference.what == "model call 1"
