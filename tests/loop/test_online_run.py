"""A run whose episodes are played by an agent in another process."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from loop_support import Driver, free_port, metrics_of, settings
from openai import OpenAI

pytestmark = pytest.mark.timeout(300)


def play(url: str, key: str, seen: list[dict[str, Any]]) -> None:
    """Take sessions until nobody listens any more; every other one of a group is worth 1."""
    with httpx.Client(base_url=url, timeout=60) as http:
        try:
            while True:
                answer = http.post("/rl/start_session", headers=bearer(key))
                if answer.status_code == 200:
                    session = answer.json()
                    seen.append(session)
                    play_one(http, session)
        except httpx.TransportError:
            return


def play_one(http: httpx.Client, session: dict[str, Any]) -> None:
    mine = bearer(session["api_key"])
    with OpenAI(api_key=session["api_key"], base_url=session["base_url"]) as client:
        try:
            made = client.chat.completions.create(
                model="policy", messages=session["data"]["messages"]
            )
        except Exception:  # noqa: BLE001 - the run has ended
            return
    reward = {"reward": int(session["session_id"][-1]) % 2, "interaction_id": made.id}
    http.post("/rl/set_reward", json=reward, headers=mine)
    http.post("/rl/end_session", headers=mine)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_two_steps_on_sessions_from_elsewhere(tmp_path: Path, model: Path) -> None:
    port = free_port()
    values = settings(tmp_path, model, gateway={"port": port})
    values["workflow"] = {"use": "online"}
    key_file = tmp_path / "runs" / "loop" / "trial" / "admin.key"
    seen: list[dict[str, Any]] = []
    with Driver(tmp_path, values) as run, ThreadPoolExecutor(2) as pool:
        run.until(key_file.is_file)
        run.until(lambda: "waiting for online agents" in run.stdout)
        url, key = f"http://127.0.0.1:{port}", key_file.read_text(encoding="utf-8").strip()
        agents = [pool.submit(play, url, key, seen) for _ in range(2)]
        code = run.wait()
        for agent in agents:
            agent.result()
    assert code == 0, run.said()
    assert f"POST {url}/rl/start_session, with the key in {key_file}" in " ".join(
        run.stdout.split()
    )
    steps = [line for line in metrics_of(run.folder) if "rollout/reward" in line]
    assert len(steps) == 2
    for step in steps:
        assert step["rollout/outcome/ok"] + step["rollout/outcome/truncated"] == 16
        assert step["rollout/reward"] == 0.5
        assert step["staleness/max"] <= 2
    groups = Counter(session["group_id"] for session in seen)
    assert max(groups.values()) == 4
    texts = [file.read_text(errors="replace") for file in run.folder.glob("**/*.json*")]
    texts += [run.stdout, run.stderr, json.dumps(steps)]
    assert not any(key in text or seen[0]["api_key"] in text for text in texts)


def test_a_host_that_others_can_reach_needs_a_key_before_anything_starts(
    tmp_path: Path, model: Path
) -> None:
    """S09."""
    values = settings(tmp_path, model, gateway={"host": "0.0.0.0"})
    values["workflow"] = {"use": "online"}
    with Driver(tmp_path, values) as run:
        assert run.wait() == 2
        assert "AREAL_AGENT_ADMIN_KEY" in run.stderr
        assert not run.folder.exists()
