"""The client of the servers: resumption, retries, proxies (S10, S25, S26)."""

import asyncio

import pytest
from http_support import ask, engine_for, pair
from scripted_server import as_json, completion, error, scripted

from areal_agent.errors import (
    RequestError,
    ServerError,
)
from areal_agent.inference.http import HttpTimeouts
from areal_agent.testing.fakes import FakeEngine

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


# Scores


@pytest.mark.parametrize(
    "answer",
    [
        {"logprobs": [[0.0, -0.5]]},
        {"logprobs": [[0.0, -0.5], [0.0]], "version": 0},
        {"logprobs": [[0.0]], "version": 0},
        {"logprobs": [[0.0, None]], "version": 0},
        [],
    ],
)
async def test_a_score_that_is_not_what_was_asked_for_is_an_error(answer):
    async with pair() as (server, engine):
        server.control_answers["/control/score"] = as_json(answer)
        with pytest.raises(ServerError, match="expected"):
            await engine.score([[1, 2]])
