"""What becomes of requests when their replica goes down, and of a replica that comes back."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from http_support import ask, engine_for, two_replicas
from scripted_server import KEY, as_json, error, event, scripted, until
from starlette.responses import StreamingResponse

from areal_agent.aio import task_group
from areal_agent.errors import EngineFault, InferenceError, ServerError, WeightUpdateError
from areal_agent.inference.http import HttpTimeouts
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trainer import servers as looking

QUICK = HttpTimeouts(request_seconds=20.0, retry_seconds=5.0, control_seconds=0.2)


def stream(*lines, then):
    """A stream of these, and then an exception, or an event that is waited for."""

    async def events():
        for line in lines:
            yield line
        if isinstance(then, BaseException):
            raise then
        await then.wait()

    return StreamingResponse(events(), media_type="text/event-stream")


async def on(server, engine):
    """Have the next conversation on `server`: the others have more to do."""
    for replica in engine._pool.replicas:
        replica.running = 0 if replica.url == server.url else 100


# The tokens that have come are kept


@pytest.mark.parametrize("cut", [b"", b'data: {"choices": [{"tok'])
async def test_another_replica_goes_on_from_what_has_come(cut):
    """S10 over a death: one budget, tokens joined with their logprobs and versions."""
    stay, die = FakeEngine(lambda _: Reply(range(20, 60)), version=3), FakeEngine(version=3)
    async with (
        scripted(stay) as staying,
        scripted(die) as dying,
        engine_for(staying, dying) as engine,
    ):
        await on(dying, engine)
        first = event([5, 6], None, logprobs=[-0.1, -0.2], versions=[2, 3])
        dying.next_answers.append(stream(first, cut, then=OSError("the process was killed")))
        dying.next_answers += [error(503, "is gone")] * 9
        reply = await engine.agenerate(ask([1, 2], max_new_tokens=6, min_new_tokens=3))
    assert list(reply.output_tokens) == [5, 6, 20, 21, 22, 23]
    assert list(reply.output_logprobs) == [-0.1, -0.2, -0.5, -0.5, -0.5, -0.5]
    assert list(reply.output_versions) == [2, 3, 3, 3, 3, 3]
    assert reply.stop_reason == "length"
    (body,) = staying.bodies()
    assert (body["prompt"], body["max_tokens"], body["min_tokens"]) == ([1, 2, 5, 6], 4, 1)
    assert (body["stream"], body["stream_interval"]) == (True, 1.0)


async def test_a_replica_that_hangs_is_left_with_what_it_gave():
    async with two_replicas(timeouts=QUICK) as (one, _two, engine):
        await on(one, engine)
        one.next_answers.append(stream(event([5], None), then=asyncio.Event()))
        async with asyncio.TaskGroup() as group:
            halved = group.create_task(engine.agenerate(ask([1])))
            await until(one.bodies)
            one.alive.clear()
            silent = group.create_task(engine.agenerate(ask([2])))
            await until(lambda: len(one.bodies()) == 2)
            assert await engine.fleet.look(silence_seconds=60) == {}
            assert not silent.done()
            wrong = await engine.fleet.look()
            assert "/health did not answer within 0.2 s" in str(wrong[0])
            assert list(wrong) == [0]
        assert list(halved.result().output_tokens) == [5, 7, 8, 9]
        assert list(silent.result().output_tokens) == [7, 8, 9]
        one.alive.set()
        assert await engine.fleet.look() == {}
        await on(one, engine)
        await engine.agenerate(ask([3]))
        assert len(one.bodies()) == 3


@asynccontextmanager
async def raw_server(answer):
    """Well as far as its health goes; to requests it says `answer`, and hangs up."""

    async def talk(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        if b"/control/version" in request:
            answered = b'{"version": 0}'
        else:
            answered = orjson.dumps({"status": "ok", "version": 0})
        if request.startswith(b"POST"):
            writer.write(answer)
        else:
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(answered) + answered)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"tea, please\r\n\r\n",
        b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\ndata: {"choices": [{"token_i',
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nda",
        b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\ndata: {",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["nothing", "not HTTP", "half a body", "half a chunk", "half an event", "500"],
)
async def test_who_talks_nonsense_loses_the_request_to_another(answer):
    class Raw:
        pass

    async with raw_server(answer) as url, scripted() as good:
        Raw.url = url
        async with engine_for(Raw, good) as engine:
            await on(Raw, engine)
            reply = await engine.agenerate(ask([1]))
    assert list(reply.output_tokens) == [7, 8, 9]
    assert len(good.bodies()) == 1


# None is up, but one is expected back


async def test_calls_wait_for_a_replica_that_is_expected_and_get_current_weights_only():
    async with two_replicas() as (one, two, engine), scripted(instance_id="new") as new:
        engine.fleet.expect_back()
        await engine.update_weights(Path("/w/1"), 1)
        for index in (0, 1):
            engine.fleet.gone(index, RuntimeError("killed"), returns=True)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(engine.agenerate(ask()))
            await engine.update_weights(Path("/w/2"), 2)  # for whoever comes back
            scores = group.create_task(engine.score([[1, 2]]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert not scores.done()
            assert await engine.fleet.look() == {}  # it is being started: nothing to name
            await engine.fleet.back(1, new.url, "new")
        assert set(waiting.result().output_versions) == {2}
        assert scores.result().version == 2
        assert new.fake.loaded == [(Path("/w/2"), 2)]
        assert one.bodies() == two.bodies() == []
        paths = [path for path, _ in new.asked]
        assert paths.index("/control/update_weights") < paths.index("/v1/completions")


async def test_a_replica_that_comes_back_to_other_weights_gets_no_requests():
    async with two_replicas() as (_one, _two, engine), scripted(instance_id="new") as new:
        engine.fleet.expect_back()
        await engine.update_weights(Path("/w/1"), 1)
        engine.fleet.gone(0, RuntimeError("killed"), returns=True)
        new.fake.refuse_weights(Path("/w/1"))
        with pytest.raises(InferenceError, match="cannot load /w/1"):
            await engine.fleet.back(0, new.url, "new")
        with pytest.raises(ServerError, match="expected the server 'other'"):
            await engine.fleet.back(0, new.url, "other")
        for _ in range(4):
            assert set((await engine.agenerate(ask())).output_versions) == {1}
        assert new.bodies() == []


async def test_when_nobody_comes_back_the_waiting_calls_end_with_the_cause():
    async with two_replicas() as (_one, _two, engine):
        engine.fleet.expect_back()
        engine.fleet.gone(0, RuntimeError("server-0 was ended by SIGKILL"), returns=False)
        engine.fleet.gone(1, RuntimeError("server-1 was ended by SIGKILL"), returns=True)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(failure(engine))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            engine.fleet.gone(1, RuntimeError("server-1 was ended again"), returns=False)
        assert "no replica of 2 is left" in waiting.result()
        assert "server-1 was ended" in waiting.result()
        with pytest.raises(WeightUpdateError, match="no replica is left"):
            await engine.update_weights(Path("/w/1"), 1)


async def failure(engine):
    with pytest.raises(InferenceError) as caught:
        await engine.agenerate(ask())
    return str(caught.value)


async def test_a_request_under_which_servers_keep_dying_is_given_up():
    async with two_replicas() as (one, two, engine):
        engine.fleet.expect_back()
        one.fake.hold()
        two.fake.hold()
        async with asyncio.TaskGroup() as group:
            poison = group.create_task(failure(engine))
            for _ in range(4):
                await until(lambda: one.fake.running + two.fake.running == 1)
                index = 0 if one.fake.running else 1
                server = (one, two)[index]
                engine.fleet.gone(index, RuntimeError("segmentation fault"), returns=True)
                await until(lambda server=server: server.fake.running == 0)
                await engine.fleet.back(index, server.url, server.instance_id)
        assert "4 servers went down while they had this request" in poison.result()
        assert "segmentation fault" in poison.result()


# Updates


async def test_who_alone_fails_an_update_is_brought_up_to_date_before_it_serves():
    async with two_replicas(weights=Path("/w/0")) as (one, _two, engine):
        engine.fleet.expect_back()
        one.fake.refuse_weights(Path("/w/1"))
        await engine.update_weights(Path("/w/1"), 1)
        assert engine.version == 1
        for _ in range(4):
            assert set((await engine.agenerate(ask())).output_versions) == {1}
        assert one.bodies() == []
        assert "cannot load /w/1" in str((await engine.fleet.look())[0])
        one.fake._bad_paths.clear()
        assert await engine.fleet.look() == {}
        assert one.fake.loaded == [(Path("/w/1"), 1)]
        await on(one, engine)
        assert set((await engine.agenerate(ask())).output_versions) == {1}
        assert len(one.bodies()) == 1


async def test_weights_that_nobody_can_load_are_refused_as_before():
    async with two_replicas(weights=Path("/w/0")) as (one, two, engine):
        engine.fleet.expect_back()
        one.fake.refuse_weights(Path("/w/1"))
        two.fake.refuse_weights(Path("/w/1"))
        with pytest.raises(WeightUpdateError, match="served nowhere"):
            await engine.update_weights(Path("/w/1"), 1)
        assert engine.version == 0
        assert set((await engine.agenerate(ask())).output_versions) == {0}


async def test_an_engine_that_broke_is_named_for_replacement():
    async with two_replicas() as (one, two, engine):
        one.fault = "out of memory"
        wrong = await engine.fleet.look(silence_seconds=60)
        assert isinstance(wrong[0], EngineFault)
        assert [replica.url for replica in engine._pool.up] == [two.url]


async def test_load_is_that_of_the_replicas_which_answer():
    async with two_replicas(timeouts=QUICK) as (one, two, engine):
        assert await engine.load() is None  # they do not say how many slots they have
        full = {"running": 8, "waiting": 3, "slots": 8}

        async def counts(request):
            assert request.url.query == "spans=0"
            assert request.headers["authorization"] == f"Bearer {KEY}"
            return as_json(full)

        async def hang(request):
            await asyncio.sleep(5)

        one.control_answers["/control/stats"] = counts
        two.control_answers["/control/stats"] = counts
        assert (await engine.load()).backlog == 6
        two.control_answers["/control/stats"] = hang
        found = await engine.load()
        assert (found.running, found.waiting, found.slots) == (8, 3, 8)


async def test_a_replica_that_waits_for_weights_hides_no_other_that_is_broken(monkeypatch):
    """An update that hangs at one holds up the other, which has its weights already."""
    monkeypatch.setattr(looking, "LOOK_SECONDS", 0.01)
    killed = asyncio.Event()

    class Processes:
        servers = (None, None)

        def kill(self, index, why):
            assert (index, "out of memory" in why) == (0, True)
            killed.set()

    async with two_replicas(weights=Path("/w/0")) as (one, two, engine), task_group() as group:
        two.fake._version = 1
        one.fault = "out of memory"
        async with asyncio.timeout(10), engine.fleet.changing:
            task = group.create_task(looking._look_after(Processes(), engine.fleet, 60))
            await killed.wait()
        task.cancel()
