"""The client of the servers: routing, weights, pauses (S21, S32)."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from http_support import ask, engine_for, two_replicas
from scripted_server import KEY, error, scripted, until

from areal_agent.errors import (
    EngineFault,
    InferenceError,
    RequestError,
    ServerError,
    WeightUpdateError,
)
from areal_agent.inference.http import HttpInferenceEngine, HttpTimeouts
from areal_agent.net.clients import HttpClients

# Replicas


async def test_conversations_stick_and_new_ones_go_where_there_is_least():
    async with scripted() as one, scripted() as two, engine_for(one, two) as engine:
        for _ in range(3):
            await engine.agenerate(ask(rid="talk"))
        assert sorted(len(server.bodies()) for server in (one, two)) == [0, 3]
        one.fake.hold()
        two.fake.hold()
        async with asyncio.TaskGroup() as group:
            for i in range(10):
                group.create_task(engine.agenerate(ask(rid=f"new-{i}")))
            await until(lambda: one.fake.running + two.fake.running == 10)
            assert (one.fake.running, two.fake.running) == (5, 5)
            one.fake.release()
            two.fake.release()


async def test_requests_of_a_replica_that_died_move():
    async with scripted() as staying:
        async with scripted() as dying, engine_for(staying, dying) as engine:
            dying.fake.hold()
            async with asyncio.TaskGroup() as group:
                work = [group.create_task(engine.agenerate(ask(rid=f"{i}"))) for i in range(6)]
                await until(lambda: dying.fake.running == 3)
                dying.fake.die("out of memory")
            assert [list(task.result().output_tokens) for task in work] == [[7, 8, 9]] * 6
        for i in range(4):
            await engine_reply(staying, i)


async def engine_reply(server, i):
    async with engine_for(server) as engine:
        assert (await engine.agenerate(ask(rid=f"{i}"))).stop_reason == "stop"


async def test_no_replica_left_names_the_last_one_and_its_reply():
    async with scripted() as server, engine_for(server) as engine:
        server.fake.die("out of memory")
        with pytest.raises(EngineFault, match=r"no replica of 1 is left.*out of memory"):
            await engine.agenerate(ask())
        with pytest.raises(EngineFault, match="out of memory"):
            await engine.agenerate(ask())


async def test_a_server_process_that_is_gone():
    async with HttpClients() as clients:
        async with scripted() as server:
            engine = HttpInferenceEngine(
                [server.url], clients=clients, model="fake", control_key=KEY
            )
            await engine.__aenter__()
        started = time.monotonic()
        with pytest.raises(ServerError, match=r"no replica of 1 is left.*cannot be reached"):
            await engine.agenerate(ask())
        assert time.monotonic() - started < 10
        await engine.__aexit__(None, None, None)


async def test_another_server_at_the_address_is_found_out():
    """S32."""
    async with scripted(instance_id="somebody-else") as server:
        with pytest.raises(ServerError, match=r"expected the server 'mine'.*'somebody-else'"):
            async with engine_for(server, instance_ids=["mine"]):
                pass


async def test_a_look_names_what_is_wrong_and_revives_what_is_well():
    async with scripted() as server, engine_for(server) as engine:
        assert await engine.fleet.look() == {}
        server.fault = "out of memory"
        assert "out of memory" in str((await engine.fleet.look())[0])
        with pytest.raises(EngineFault):
            await engine.agenerate(ask())
        server.fault = None
        assert await engine.fleet.look() == {}
        assert (await engine.agenerate(ask())).stop_reason == "stop"


# Weights (S21)


async def test_the_version_advances_when_all_have_it():
    async with scripted() as one, scripted() as two, engine_for(one, two) as engine:
        await engine.update_weights(Path("/w/1"), 1)
        assert engine.version == 1
        assert one.fake.loaded == two.fake.loaded == [(Path("/w/1"), 1)]
        reply = await engine.agenerate(ask())
        assert set(reply.output_versions) == {1}
        with pytest.raises(WeightUpdateError, match="above 1, got 1"):
            await engine.update_weights(Path("/w/1"), 1)


async def test_an_update_that_one_refuses_is_undone_on_the_others():
    async with two_replicas(weights=Path("/w/0")) as (one, two, engine):
        two.fake.refuse_weights(Path("/w/1"))
        with pytest.raises(WeightUpdateError, match=r"served nowhere: .*cannot load /w/1"):
            await engine.update_weights(Path("/w/1"), 1)
        assert engine.version == 0
        assert one.fake.loaded == [(Path("/w/1"), 1), (Path("/w/0"), 0)]
        assert (one.fake.version, two.fake.version) == (0, 0)
        replies = [await engine.agenerate(ask()) for _ in range(4)]
        assert {v for reply in replies for v in reply.output_versions} == {0}
        await engine.update_weights(Path("/w/2"), 2)
        assert engine.version == 2


async def test_a_replica_that_died_does_not_stop_an_update():
    async with two_replicas() as (staying, dying, engine):
        dying.fault = "out of memory"
        dying.fake.refuse_weights(Path("/w/1"))
        await engine.update_weights(Path("/w/1"), 1)
        assert engine.version == 1
        for _ in range(4):
            assert set((await engine.agenerate(ask())).output_versions) == {1}
        staying.fault = "out of memory, too"
        staying.fake.refuse_weights(Path("/w/2"))
        with pytest.raises(WeightUpdateError, match="no replica is left"):
            await engine.update_weights(Path("/w/2"), 2)
        assert engine.version == 1


async def test_who_cannot_go_back_gets_no_more_requests():
    async with two_replicas(weights=Path("/w/0")) as (one, two, engine):
        one.fake.refuse_weights(Path("/w/0"))
        two.fake.refuse_weights(Path("/w/1"))
        with pytest.raises(WeightUpdateError):
            await engine.update_weights(Path("/w/1"), 1)
        before = len(one.bodies())
        for _ in range(4):
            assert set((await engine.agenerate(ask())).output_versions) == {0}
        assert len(one.bodies()) == before


async def test_an_update_that_hangs_is_given_up_and_the_old_weights_answer():
    async def hang(request):
        await asyncio.sleep(30)

    timeouts = HttpTimeouts(update_seconds=0.2, control_seconds=2.0)
    async with scripted() as server, engine_for(server, timeouts=timeouts) as engine:
        server.control_answers["/control/update_weights"] = hang
        server.fake.hold()
        with pytest.raises(WeightUpdateError, match=r"did not answer within 0\.2 s"):
            await engine.update_weights(Path("/w/1"), 1)
        reply = await engine.agenerate(ask())
        assert set(reply.output_versions) == {0}


async def test_pause_holds_and_resumes_on_an_error():
    async with scripted() as server, engine_for(server) as engine:
        async with asyncio.TaskGroup() as group:
            with contextlib.suppress(KeyError):
                async with engine.paused():
                    waiting = group.create_task(engine.agenerate(ask()))
                    await asyncio.sleep(0.05)
                    assert not waiting.done()
                    assert server.bodies() == []
                    raise KeyError("in the body")
        assert waiting.result().stop_reason == "stop"
        paths = [path for path, _ in server.asked]
        assert paths.index("/control/pause") < paths.index("/control/resume")


async def test_a_pause_that_fails_resumes_everywhere():
    async with scripted() as one, scripted() as two, engine_for(one, two) as engine:
        two.control_answers["/control/pause"] = error(500, "busy")
        with pytest.raises(InferenceError, match="500: busy"):
            async with engine.paused():
                pytest.fail("the body must not run")
        assert (await engine.agenerate(ask())).stop_reason == "stop"
        assert "/control/resume" in [path for path, _ in one.asked]


async def test_a_wrong_key_is_said_at_once_without_showing_it():
    async with scripted() as server, HttpClients() as clients:
        engine = HttpInferenceEngine(
            [server.url], clients=clients, model="fake", control_key="wrong-secret"
        )
        with pytest.raises(RequestError, match="403: the key is not") as caught:
            await engine.__aenter__()
        assert "wrong-secret" not in str(caught.value)
