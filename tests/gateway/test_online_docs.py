"""The page on online agents: its commands and its program do what it says."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from gateway_support import until
from online_support import elsewhere

PAGE = Path(__file__).parents[2] / "docs" / "online.md"
URL = "http://127.0.0.1:8400"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


async def test_the_commands_of_the_page_make_an_episode(tmp_path: Path) -> None:
    key_file = tmp_path / "runs" / "elsewhere" / "trial" / "admin.key"
    key_file.parent.mkdir(parents=True)
    async with elsewhere("42", key_file=key_file) as there:
        there.offer()
        await until(lambda: bool(there.workflow.waits_for()))
        script = "\necho\n".join(["set -eu", *blocks("bash")])
        assert URL in script
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            script.replace(URL, there.playing.gateway.url),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        told = [json.loads(line) for line in out.decode().splitlines() if line]
        assert process.returncode == 0, told
        run = await there.tasks[0]
    started, answer, reward, ended = told
    assert set(started) == {"session_id", "group_id", "is_eval", "data", "api_key", "base_url"}
    assert answer["choices"][0]["message"]["content"] == "42"
    assert reward == {"interaction_id": answer["id"], "reward": 1.0}
    assert f"`{json.dumps(ended, separators=(',', ':'))}`" in PAGE.read_text("utf-8")
    assert (run.episode.outcome, run.episode.reward) == ("ok", 1.0)


async def test_the_program_of_the_page_plays_until_the_run_has_ended(tmp_path: Path) -> None:
    [program] = blocks("python")
    names: dict[str, Any] = {}
    exec(program, names)

    def play(client: Any, session: Any) -> float:
        message = {"role": "user", "content": session["data"]["question"]}
        made = client.chat.completions.create(model="policy", messages=[message])
        return float(made.choices[0].message.content == "2")

    key_file = tmp_path / "admin.key"
    async with asyncio.TaskGroup() as group, elsewhere("2", "3", key_file=key_file) as there:
        there.offer(2, question="1+1")
        await until(key_file.is_file)
        key, url = key_file.read_text("utf-8").strip(), there.playing.gateway.url
        playing = group.create_task(asyncio.to_thread(names["work"], url, key, play))
        runs = [await task for task in there.tasks]
    assert sorted(run.episode.reward or 0.0 for run in runs) == [0.0, 1.0]
    assert await playing == 2
