"""The client of the servers: resumption, retries, routing, weights, lifetimes."""

import asyncio
import contextlib
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scripted_server import KEY, completion, error, scripted, until

from areal_agent.config.generation import GenerationHyperparameters
from areal_agent.errors import (
    EngineFault,
    InferenceError,
    RequestError,
    ServerError,
    WeightUpdateError,
)
from areal_agent.inference.http import HttpInferenceEngine, HttpTimeouts
from areal_agent.net.clients import HttpClients
from areal_agent.testing.fakes import FakeEngine
from areal_agent.types import ModelRequest


@asynccontextmanager
async def engine_for(*servers, **kwargs):
    kwargs.setdefault("timeouts", HttpTimeouts(request_seconds=20.0, retry_seconds=5.0))
    async with (
        asyncio.timeout(30),
        HttpClients() as clients,
        HttpInferenceEngine(
            [server.url for server in servers],
            clients=clients,
            model="fake",
            control_key=KEY,
            **kwargs,
        ) as engine,
    ):
        yield engine


@asynccontextmanager
async def pair(**kwargs):
    """One scripted server and its client."""
    async with scripted() as server, engine_for(server, **kwargs) as engine:
        yield server, engine


@asynccontextmanager
async def two_replicas(**kwargs):
    async with scripted() as one, scripted() as two, engine_for(one, two, **kwargs) as engine:
        yield one, two, engine


def ask(prompt=(1, 2), **gconfig):
    rid = {"rid": gconfig.pop("rid")} if "rid" in gconfig else {}
    return ModelRequest(input_ids=list(prompt), gconfig=GenerationHyperparameters(**gconfig), **rid)


# Interrupted replies (S10)


async def test_segments_join_within_one_budget():
    async with pair() as (server, engine):
        server.next_answers += [
            completion([1, 2, 3, 4], "abort", version=0),
            completion([5, 6, 7], "abort", version=1),
            completion([8, 9, 10], "length", version=2),
        ]
        reply = await engine.agenerate(ask([11, 12], max_new_tokens=10, min_new_tokens=5, seed=3))
    assert list(reply.input_tokens) == [11, 12]
    assert list(reply.output_tokens) == list(range(1, 11))
    assert len(reply.output_logprobs) == 10
    assert list(reply.output_versions) == [0] * 4 + [1] * 3 + [2] * 3
    assert reply.stop_reason == "length"
    bodies = server.bodies()
    assert [body["max_tokens"] for body in bodies] == [10, 6, 3]
    assert [body.get("min_tokens", 0) for body in bodies] == [5, 1, 0]
    assert [body["prompt"] for body in bodies] == [
        [11, 12],
        [11, 12, 1, 2, 3, 4],
        [11, 12, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert bodies[0]["seed"] == 3
    assert len({body["seed"] for body in bodies}) == 3
    assert len({body["request_id"] for body in bodies}) == 3
    assert len({body["cache_key"] for body in bodies}) == 1


async def test_an_abort_without_tokens_is_asked_again():
    async with pair() as (server, engine):
        server.next_answers += [completion([], "abort"), completion([], "abort"), completion([5])]
        reply = await engine.agenerate(ask(max_new_tokens=4))
    assert list(reply.output_tokens) == [5]
    assert reply.stop_reason == "stop"
    assert [body["max_tokens"] for body in server.bodies()] == [4, 4, 4]


async def test_an_abort_exactly_at_the_cap_is_a_length():
    async with pair() as (server, engine):
        server.next_answers.append(completion([5, 6, 7], "abort"))
        reply = await engine.agenerate(ask(max_new_tokens=3))
    assert list(reply.output_tokens) == [5, 6, 7]
    assert reply.stop_reason == "length"
    assert len(server.bodies()) == 1


async def test_a_server_that_gives_more_than_was_asked_for_is_refused():
    async with pair() as (server, engine):
        server.next_answers.append(completion([1, 2, 3]))
        with pytest.raises(ServerError, match=r"at most 2 tokens .* got 3 tokens"):
            await engine.agenerate(ask(max_new_tokens=2))


@pytest.mark.parametrize(
    ("gconfig", "expected"),
    [
        ({"max_tokens": 9, "max_new_tokens": 100}, 7),
        ({"max_tokens": 9, "max_new_tokens": 4}, 4),
        ({"max_tokens": 3}, 1),
    ],
)
async def test_budget(gconfig, expected):
    async with pair() as (server, engine):
        server.next_answers.append(completion([5]))
        await engine.agenerate(ask([1, 2], **gconfig))
    assert server.bodies()[0]["max_tokens"] == expected


async def test_sampling_settings_reach_the_server():
    async with pair() as (server, engine):
        server.next_answers.append(completion([5]))
        await engine.agenerate(
            ask(greedy=True, top_k=3, top_p=0.5, stop=["x"], stop_token_ids=[4], ignore_eos=True)
        )
    body = server.bodies()[0]
    assert body["temperature"] == 0.0
    assert (body["top_k"], body["top_p"], body["stop"]) == (3, 0.5, ["x"])
    assert body["stop_token_ids"] == [4]
    assert body["ignore_eos"] is True
    assert "seed" not in body


async def test_a_server_without_versions_gets_the_one_known_before():
    async with scripted(FakeEngine(version=4)) as server, engine_for(server) as engine:
        answer = completion([5, 6])
        del answer["choices"][0]["weight_versions"]
        server.next_answers.append(answer)
        reply = await engine.agenerate(ask())
    assert list(reply.output_versions) == [4, 4]


# Retries (S25)


async def test_a_refusal_is_sent_once_with_the_servers_words():
    async with pair() as (server, engine):
        server.next_answers.append(error(400, "the prompt is too long by 7"))
        with pytest.raises(RequestError, match="400: the prompt is too long by 7") as caught:
            await engine.agenerate(ask())
    assert caught.value.status == 400
    assert len(server.bodies()) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_what_may_pass_is_tried_again(status):
    async with pair() as (server, engine):
        server.next_answers += [error(status, "later"), error(status, "later"), completion([5])]
        reply = await engine.agenerate(ask())
    assert list(reply.output_tokens) == [5]
    assert len(server.bodies()) == 3


async def test_failures_end_at_the_total_deadline():
    timeouts = HttpTimeouts(request_seconds=20.0, retry_seconds=0.3)
    async with pair(timeouts=timeouts) as (server, engine):
        server.next_answers += [error(503, "warming up")] * 1000
        with pytest.raises(ServerError, match=r"503: warming up; tried .* for 0\.3 s"):
            await engine.agenerate(ask())
        assert 2 <= len(server.bodies()) < 20


async def test_a_silent_server_ends_at_the_request_deadline():
    timeouts = HttpTimeouts(request_seconds=0.2)
    async with pair(timeouts=timeouts) as (server, engine):
        server.fake.hold()
        with pytest.raises(ServerError, match=r"not answered within 0\.2 s"):
            await engine.agenerate(ask())
        server.fake.release()


async def test_idle_sockets_that_the_server_closes_do_no_harm():
    """The server closes after 1 s; calls come right at that moment."""
    async with scripted(keep_alive_seconds=1) as server, engine_for(server) as engine:
        for pause in (0.98, 1.0, 1.01, 1.0):
            replies = [engine.agenerate(ask()) for _ in range(8)]
            for reply in replies:
                assert list((await reply).output_tokens) == [7, 8, 9]
            await asyncio.sleep(pause)


# Proxies and IPv6 (S26)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_proxy_variables_do_not_touch_internal_traffic(host, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with scripted(host=host) as server, engine_for(server) as engine:
        assert ("[::1]" in server.url) == (host == "::1")
        assert list((await engine.agenerate(ask())).output_tokens) == [7, 8, 9]
        assert await engine.stats() == {server.url: {"running": 0}}


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


async def test_health_names_what_is_wrong_and_revives_what_is_well():
    async with scripted() as server, engine_for(server) as engine:
        assert await engine.health() == {}
        server.fault = "out of memory"
        assert "out of memory" in (await engine.health())[server.url]
        with pytest.raises(EngineFault):
            await engine.agenerate(ask())
        server.fault = None
        assert await engine.health() == {}
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


# Lifetimes (S24)


async def test_leaving_ends_what_is_in_flight():
    async with scripted() as server:
        server.fake.hold()
        async with asyncio.TaskGroup() as group, engine_for(server) as engine:
            waiting = group.create_task(swallow(engine))
            await until(lambda: server.fake.running)
        assert "the engine was closed" in waiting.result()
        server.fake.release()


async def swallow(engine):
    try:
        await engine.agenerate(ask())
    except ServerError as error:
        return str(error)


def test_one_engine_in_two_loops():
    clients = HttpClients()

    async def once():
        async with scripted() as server:
            engine = HttpInferenceEngine(
                [server.url], clients=clients, model="fake", control_key=KEY
            )
            async with clients, engine:
                return list((await engine.agenerate(ask())).output_tokens)

    assert asyncio.run(once()) == [7, 8, 9]
    assert asyncio.run(once()) == [7, 8, 9]


def test_clients_say_which_loop_they_belong_to():
    clients = HttpClients()

    async def leak():
        await clients.__aenter__()

    async def use():
        clients.get("generate")

    async def close():
        await clients.__aexit__(None, None, None)

    asyncio.run(leak())
    with pytest.raises(RuntimeError, match="belong to another event loop"):
        asyncio.run(use())
    asyncio.run(close())
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(use())


def test_nothing_is_left_open_under_strict_warnings(tmp_path):
    script = tmp_path / "twice.py"
    script.write_text(
        f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from scripted_server import KEY, scripted
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.net.clients import HttpClients
from areal_agent.types import ModelRequest

async def main():
    async with scripted() as server, HttpClients() as clients:
        async with HttpInferenceEngine(
            [server.url], clients=clients, model="fake", control_key=KEY
        ) as engine:
            reply = await engine.agenerate(ModelRequest(input_ids=[1]))
            print(list(reply.output_tokens))

asyncio.run(main())
asyncio.run(main())
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "[7, 8, 9]\n[7, 8, 9]\n"
    assert done.returncode == 0
    assert "Warning" not in done.stderr
    assert "unclosed" not in done.stderr.lower()


async def test_cancelling_the_caller_cancels_on_the_server():
    async with pair() as (server, engine):
        server.fake.hold()
        async with asyncio.TaskGroup() as group:
            work = group.create_task(engine.agenerate(ask()))
            await until(lambda: server.fake.running)
            work.cancel()
        await until(lambda: not server.fake.running)
        assert server.fake.cancelled == 1
