"""Control routes, health and metrics."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from server_support import CONTROL, Served, served, until
from tiny_models import VOCAB, make_model, reference_logprobs

PROMPT = [10, 20, 30, 40, 50]
ROUTES = {
    "pause": {"mode": "keep"},
    "resume": {},
    "abort": {"request_ids": None},
    "update_weights": {"path": "/nowhere", "version": 1},
    "score": {"rows": [[1]], "temperature": 1.0},
    "version": None,
    "stats": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("new"), seed=1)


@pytest.fixture
async def server(folder: Path) -> AsyncGenerator[Served]:
    async with served(folder) as server:
        yield server


@pytest.mark.parametrize("name", ROUTES)
async def test_control_needs_the_key(server: Served, name: str) -> None:
    body = ROUTES[name]
    method = "GET" if body is None else "POST"
    keys = [
        (401, {}),
        (403, {"Authorization": "Bearer wrong"}),
        (401, {"Authorization": "Basic x"}),
    ]
    for status, headers in keys:
        answer = await server.client.request(method, f"/control/{name}", json=body, headers=headers)
        assert answer.status_code == status
        assert "control-key" not in answer.text
    assert not server.engine.paused


async def test_the_data_plane_can_have_a_key_of_its_own(folder: Path) -> None:
    async with served(folder, api_key="data-key") as server:
        body = {"prompt": PROMPT, "max_tokens": 1}
        for headers, status in (
            ({}, 401),
            (CONTROL, 403),
            ({"Authorization": "Bearer data-key"}, 200),
        ):
            answer = await server.client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == status
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.control("version")).json() == {"version": 0}


async def test_weights_are_updated_and_told(server: Served, new: Path) -> None:
    answer = await server.control("update_weights", {"path": str(new), "version": 3, "mode": None})
    assert (answer.status_code, answer.json()) == (200, {"version": 3})
    assert (await server.control("version")).json() == {"version": 3}
    assert (await server.client.get("/health")).json() == {
        "status": "ok",
        "version": 3,
        "instance_id": "me",
        "model": "tiny",
    }
    reply = await server.complete(
        prompt=PROMPT, max_tokens=4, return_weight_versions=True, ignore_eos=True
    )
    assert reply["choices"][0]["weight_versions"] == [3] * 4


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"path": "/nowhere", "version": 1}, 409, "export the weights"),
        ({"path": "/" + "x" * 5000, "version": 1}, 409, "cannot read config.json"),
        ({"version": 1}, 400, "path"),
        ({"path": "/nowhere"}, 400, "version"),
        ({"path": "/nowhere", "version": 1, "mode": "hard"}, 400, "one of"),
        ({"path": "/nowhere", "version": 1, "force": True}, 400, "force"),
    ],
)
async def test_a_failed_update_changes_nothing(
    server: Served, body: dict[str, object], status: int, message: str
) -> None:
    answer = await server.control("update_weights", body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    reply = await server.complete(prompt=PROMPT, max_tokens=2, return_weight_versions=True)
    assert reply["choices"][0]["weight_versions"][0] == 0


async def test_an_older_version_is_served_only_to_take_an_update_back(
    server: Served, folder: Path, new: Path
) -> None:
    await server.control("update_weights", {"path": str(new), "version": 2})
    back = {"path": str(folder), "version": 1}
    answer = await server.control("update_weights", back)
    assert answer.status_code == 409
    assert "expected version 2 or later, got 1" in answer.json()["error"]["message"]
    answer = await server.control("update_weights", back | {"allow_older": True})
    assert (answer.status_code, answer.json()) == (200, {"version": 1})


async def test_an_empty_row_to_score_is_refused_and_harms_nothing(server: Served) -> None:
    answer = await server.control("score", {"rows": [[1, 2], []]})
    assert answer.status_code == 400
    assert "at least one token id" in answer.json()["error"]["message"]
    assert (await server.client.get("/health")).json()["status"] == "ok"


async def test_pause_holds_and_resume_lets_go(server: Served) -> None:
    server.model.hold_at = 3
    async with asyncio.TaskGroup() as group:
        first = group.create_task(
            server.complete(
                prompt=PROMPT, max_tokens=9, request_id="a", return_token_ids=True, ignore_eos=True
            )
        )
        await server.model.wait_held()
        pausing = group.create_task(server.control("pause", {"mode": "abort"}))
        await until(lambda: server.command_waits)
        server.model.go_on.set()
        assert (await pausing).json() == {"paused": True, "version": 0}
        choice = (await first)["choices"][0]
        assert (choice["finish_reason"], len(choice["token_ids"])) == ("abort", 4)
        second = group.create_task(server.complete(prompt=PROMPT, max_tokens=2, request_id="b"))
        await until(lambda: server.engine.stats()["waiting"] == 1)
        assert not second.done()
        await server.control("resume", {})
        assert (await second)["choices"][0]["finish_reason"] in ("length", "stop")


async def test_abort_by_request_id(server: Served) -> None:
    await server.control("pause", {})
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.complete(prompt=PROMPT, max_tokens=2, request_id="b"))
        await until(lambda: server.engine.stats()["waiting"] == 1)
        assert (await server.control("abort", {"request_ids": ["x"]})).json() == {"aborted": 0}
        assert (await server.control("abort", {"request_ids": ["b"]})).json() == {"aborted": 1}
        assert (await task)["choices"][0]["finish_reason"] == "abort"


async def test_score(server: Served, folder: Path) -> None:
    row = [5, 6, 7, 8]
    answer = await server.control("score", {"rows": [row, [9]], "temperature": 0.6})
    assert answer.json()["version"] == 0
    assert answer.json()["logprobs"][0] == pytest.approx(
        reference_logprobs(folder, row, 0.6), abs=1e-4
    )
    assert answer.json()["logprobs"][1] == [0.0]
    for body, param in (
        ({"rows": [[VOCAB]]}, "rows"),
        ({"rows": 3}, "rows"),
        ({"rows": [[1] * 300]}, "rows"),
        ({"rows": [[1]], "temperature": 0}, "temperature"),
    ):
        refused = await server.control("score", body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_counters_agree_with_what_was_sent(server: Served, new: Path) -> None:
    await server.complete(prompt=PROMPT, max_tokens=7, n=2, ignore_eos=True)
    await server.control("update_weights", {"path": str(new), "version": 2})
    stats = (await server.control("stats")).json()
    assert (stats["generated_tokens"], stats["prompt_tokens"], stats["requests"]) == (14, 10, 2)
    assert stats["prefix_hit_tokens"] == 4
    assert stats["busy_spans"][-1][1] >= stats["busy_spans"][0][0]
    brief = (await server.client.get("/control/stats?spans=0", headers=CONTROL)).json()
    assert brief == {name: value for name, value in stats.items() if name != "busy_spans"}
    assert (brief["running"], brief["waiting"]) == (0, 0)
    assert brief["slots"] == 128
    page = (await server.client.get("/metrics")).text
    assert "areal_agent_engine_generated_tokens_total 14.0" in page
    assert "areal_agent_engine_version 2.0" in page
    assert "areal_agent_engine_updates_total 1.0" in page
    assert "# TYPE areal_agent_engine_running gauge" in page
    assert (await server.client.get("/metrics")).text.count("HELP") == page.count("HELP")


async def test_a_fault_turns_health_red_and_fails_everyone(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    server.model.hold_at = 3
    server.model.error = RuntimeError("the disk is on fire")
    body = {"prompt": PROMPT, "max_tokens": 9}
    async with asyncio.TaskGroup() as group:
        whole = group.create_task(server.client.post("/v1/completions", json=body))
        await server.model.wait_held()
        streamed = group.create_task(
            server.client.post("/v1/completions", json={**body, "stream": True})
        )
        await until(lambda: server.command_waits)
        server.model.go_on.set()
    assert whole.result().status_code == 503
    assert whole.result().json()["error"]["code"] == "engine_fault"
    assert '"code":"engine_fault"' in streamed.result().text
    assert "[DONE]" not in streamed.result().text
    health = await server.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "fault")
    assert "the disk is on fire" in health.json()["reason"]
    assert (await server.client.post("/v1/completions", json=body)).status_code == 503
    assert (await server.control("pause", {})).status_code == 503
    assert "the engine has broken" in caplog.text
