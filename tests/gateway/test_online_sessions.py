"""Online mode: agents elsewhere start sessions, talk, set rewards, and end them."""

import asyncio
import logging
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gateway_support import until
from online_support import ADMIN, Elsewhere, elsewhere

from areal_agent.rollout.episode import EpisodeRun

AGENT = """\
import sys
import httpx
from openai import OpenAI

url, key = sys.argv[1:]
with httpx.Client(base_url=url) as http:
    admin = {"authorization": f"Bearer {key}"}
    session = http.post("/rl/start_session", headers=admin).raise_for_status().json()
    mine = {"authorization": f"Bearer {session['api_key']}"}
    client = OpenAI(api_key=session["api_key"], base_url=session["base_url"])
    messages = session["data"]["messages"]
    for text in ("more", "enough"):
        made = client.chat.completions.create(model="policy", messages=messages)
        messages += [made.choices[0].message.model_dump(exclude_none=True)]
        messages += [{"role": "user", "content": text}]
    http.post("/rl/set_reward", json={"reward": 0.25}, headers=mine).raise_for_status()
    print(http.post("/rl/end_session", headers=mine).raise_for_status().text)
"""


def check_error(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    return error


async def ended(there: Elsewhere, n: int = 0) -> EpisodeRun:
    async with asyncio.timeout(20):
        return await there.tasks[n]


async def test_an_agent_in_another_process_is_trained_on() -> None:
    async with elsewhere("a", "b") as there:
        there.offer(messages=[{"role": "user", "content": "go"}], answer=7)
        await until(lambda: bool(there.workflow.waits_for()))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AGENT, there.playing.gateway.url, ADMIN, stdout=-1
        )
        out, _ = await process.communicate()
        run = await ended(there)
        [row] = run.rows
        sampled = [t for t, m in zip(row.input_ids, row.loss_mask, strict=True) if m]
        assert there.playing.chat.decode(sampled) == "a<|im_end|>b<|im_end|>"
    assert run.episode.outcome == "ok"
    assert row.reward == 0.25
    assert row.metrics["prefix_hits"] == 1
    assert b'"turns":2,"rows":1,"error":null' in out


async def test_a_session_knows_its_group_and_its_row() -> None:
    async with elsewhere() as there:
        there.offer(2, question="1+1", bad=float)
        there.offer(1, is_eval=True)
        first, second, third = [await there.start() for _ in range(3)]
        assert (first["session_id"], first["group_id"]) == ("0:0:0", "0:0")
        assert (second["session_id"], second["group_id"]) == ("0:1:1", "0:0")
        assert first["data"] == {"question": "1+1", "bad": "<class 'float'>"}
        assert (first["is_eval"], third["is_eval"]) == (False, True)
        assert first["api_key"] != second["api_key"]
        root = there.playing.gateway.url
        assert first["base_url"].startswith(f"{root}/s/")
        # Clients that cannot set a key reach it as well.
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        path = first["base_url"].removeprefix(root)
        assert (await there.post(f"{path}/chat/completions", body, key="")).status_code == 200
        own = path.removesuffix("/v1")
        assert (await there.post(f"{own}/rl/set_reward", {"reward": 1}, key="")).status_code == 200
        assert (await there.post(f"{own}/rl/end_session", key="")).json()["rows"] == 1
        assert (await ended(there)).episode.outcome == "ok"


@pytest.mark.parametrize("key", ["", "wrong", ADMIN[:-1], ADMIN + "x", "kéy"])
async def test_a_session_starts_with_the_admin_key_only(key: str) -> None:
    async with elsewhere() as there:
        there.offer()
        await until(lambda: bool(there.workflow.waits_for()))
        headers = {"authorization": b"Bearer " + key.encode()} if key else {}
        answer = await there.http.post("/rl/start_session", headers=headers)
        error = check_error(answer, 401, "invalid_admin_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ADMIN not in error["message"]
        session = await there.start()
        other = await there.post("/rl/start_session", key=session["api_key"])
        check_error(other, 401, "invalid_admin_key")
        check_error(await there.ask({"api_key": ADMIN}), 401, "invalid_api_key")


async def test_nothing_on_offer_is_a_429_that_says_when_to_come_again() -> None:
    async with elsewhere() as there:
        answer = await there.post("/rl/start_session")
        check_error(answer, 404, "not_online")
        there.offer()
        await there.start()
        answer = await there.post("/rl/start_session")
        error = check_error(answer, 429, "no_session_on_offer")
        assert error["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after"]) >= 1


async def test_too_many_calls_are_a_429_also_in_anthropics_shape() -> None:
    async with elsewhere(max_requests=1) as there, asyncio.TaskGroup() as group:
        there.offer()
        session = await there.start()
        there.playing.engine.hold()
        first = group.create_task(there.ask(session, "one"))
        await until(lambda: there.playing.engine.running == 1)
        answer = await there.ask(session, "two")
        check_error(answer, 429, "too_many_requests")
        assert int(answer.headers["retry-after"]) >= 1
        body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        answer = await there.post("/v1/messages", body, session["api_key"])
        assert answer.status_code == 429
        assert answer.json()["error"]["type"] == "rate_limit_error"
        there.playing.engine.release()
        assert (await first).status_code == 200
        assert (await there.ask(session, "two")).status_code == 200


async def test_after_the_end_everything_is_410() -> None:
    async with elsewhere() as there:
        there.offer()
        session = await there.start()
        key = session["api_key"]
        await there.ask(session)
        await there.post("/rl/set_reward", {"reward": 1}, key)
        assert (await there.post("/rl/end_session", {"note": "x"}, key)).status_code == 400
        assert (await there.post("/rl/end_session", {}, key)).json()["error"] is None
        check_error(await there.post("/rl/end_session", {}, key), 410, "session_sealed")
        check_error(await there.ask(session), 410, "session_sealed")
        late = await there.post("/rl/set_reward", {"reward": 5}, key)
        check_error(late, 410, "session_sealed")
        [row] = (await ended(there)).rows
        assert row.reward == 1.0


async def test_ended_twice_at_once_one_of_them_hears_410() -> None:
    async with elsewhere() as there:
        there.offer()
        key = (await there.start())["api_key"]
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(there.post("/rl/end_session", {}, key)) for _ in range(2)]
        assert sorted(end.result().status_code for end in ends) == [200, 410]


async def test_who_started_a_session_may_end_it() -> None:
    async with elsewhere() as there:
        there.offer()
        session = await there.start()
        for name in (None, "0:9:9"):
            answer = await there.post("/rl/end_session", {"session_id": name})
            check_error(answer, 404, "no_such_session")
        answer = await there.post("/rl/end_session", {"session_id": session["session_id"]})
        assert answer.json()["error"] == "the session called no model"
        assert (await ended(there)).episode.outcome == "rejected"


async def test_a_session_of_an_agent_here_ends_with_its_episode() -> None:
    async with elsewhere() as there, there.playing.session() as session:
        check_error(await there.post("/rl/end_session", {}, session.key), 404, "not_online")
        assert not session.is_sealed


async def test_a_missing_reward_is_a_reward_error_and_the_agent_hears_of_it() -> None:
    async with elsewhere() as there:
        there.offer()
        session = await there.start()
        await there.ask(session)
        told = (await there.post("/rl/end_session", {}, session["api_key"])).json()
        assert "reward" in told["error"]
        assert (told["turns"], told["rows"]) == (1, 0)
        run = await ended(there)
    assert (run.episode.outcome, list(run.rows)) == ("reward_error", [])


@pytest.mark.parametrize("body", [b'{"reward": NaN}', b'{"reward": 1e999}', b'{"reward": "1"}'])
async def test_what_is_no_number_is_refused_as_reward(body: bytes) -> None:
    async with elsewhere() as there:
        there.offer()
        session = await there.start()
        await there.ask(session)
        headers = {"authorization": f"Bearer {session['api_key']}"}
        answer = await there.http.post("/rl/set_reward", content=body, headers=headers)
        assert answer.status_code == 400
        told = (await there.post("/rl/end_session", {}, session["api_key"])).json()
        assert told["rows"] == 0


async def test_an_idle_session_times_out_and_a_busy_one_does_not() -> None:
    async with elsewhere(session_idle_seconds=0.8) as there, asyncio.TaskGroup() as group:
        there.offer(2)
        idle, busy = await there.start(), await there.start()
        there.playing.engine.hold()
        call = group.create_task(there.ask(busy))
        run = await ended(there)
        assert run.episode.outcome == "timeout"
        assert run.episode.failure is not None
        assert "session_idle_seconds" in run.episode.failure.message
        check_error(await there.ask(idle), 410, "session_sealed")
        check_error(await there.post("/rl/end_session", {}, idle["api_key"]), 410, "session_sealed")
        await asyncio.sleep(1.0)  # longer than a session may be idle
        assert not there.tasks[1].done()
        there.playing.engine.release()
        assert (await call).status_code == 200
        assert (await ended(there, 1)).episode.outcome == "timeout"


async def test_time_on_offer_is_none_of_the_episode() -> None:
    async with elsewhere(episode_seconds=1.0) as there:
        began = time.monotonic()
        there.offer()
        await until(lambda: bool(there.workflow.waits_for()))
        await asyncio.sleep(1.2)  # longer than an episode may take
        assert not there.tasks[0].done()
        assert "1 sessions on offer" in there.workflow.waits_for()
        session = await there.start()
        assert (await there.ask(session)).status_code == 200
        run = await ended(there)
        seconds = time.monotonic() - began
        check_error(await there.ask(session), 410, "session_sealed")
    assert run.episode.outcome == "timeout"
    assert run.episode.failure is not None
    assert "rollout.limits.seconds" in run.episode.failure.message
    assert 0.9 < run.episode.seconds < seconds - 1.1


async def test_without_any_agent_offers_end_and_say_why() -> None:
    async with elsewhere(agents_timeout_seconds=0.8) as there:
        there.offer(2)
        taken = await there.start()
        await asyncio.sleep(1.0)
        assert not there.tasks[1].done()  # an agent is at work
        await there.post("/rl/end_session", {}, taken["api_key"])
        run = await ended(there, 1)
    assert run.episode.outcome == "timeout"
    assert run.episode.failure is not None
    assert "agents_timeout_seconds" in run.episode.failure.message


async def test_a_run_that_ends_seals_what_is_open() -> None:
    async with elsewhere() as there, asyncio.TaskGroup() as group:
        there.offer(2)
        session = await there.start()
        there.playing.engine.hold()
        call = group.create_task(there.ask(session))
        await until(lambda: there.playing.engine.running == 1)
        for task in there.tasks:
            task.cancel()
        check_error(await call, 410, "session_sealed")
        await asyncio.wait(there.tasks)
        check_error(await there.ask(session), 410, "session_sealed")
        check_error(await there.post("/rl/start_session"), 429, "no_session_on_offer")
        assert len(there.playing.gateway.sessions) == 0


async def test_keys_are_in_no_log_and_one_private_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "admin.key"
    caplog.set_level(logging.DEBUG)
    async with elsewhere(key_file=file) as there:
        there.offer()
        await until(file.is_file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        key = file.read_text(encoding="utf-8").strip()
        assert len(key) > 40
        session = (await there.post("/rl/start_session", key=key)).json()
        await there.ask(session)
        assert str(file) in there.workflow.open()
    text = caplog.text + repr(there.playing.gateway.desk.key)
    assert "/rl/start_session" in text
    assert key not in text
    assert session["api_key"] not in text
