"""``areal-agent episodes``: what is listed, what is shown, and nothing that steers a terminal."""

import json
import subprocess
import sys

import pytest
from record_support import dialogue, ran, text
from rollout_support import Calls

from areal_agent import workflow_context
from areal_agent.errors import DataError
from areal_agent.rollout.record_list import Filters, listed
from areal_agent.rollout.record_text import safe
from areal_agent.rollout.records import EpisodeRecorder
from areal_agent.types import Episode, Failure

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\u202e\x9b[bold]\r\x00"


@pytest.fixture
async def run(tmp_path):
    """A run of five episodes, whose last line is being written."""

    def search(query, limit):
        return f"{HOSTILE} {query}"

    async def asks(engine, data):
        await workflow_context.tool(search, "cats", limit=3)
        raise ValueError(f"no such page {HOSTILE}")

    first = await ran(*dialogue([4, 5], [6, 7]))
    failed = await ran(Calls(asks))
    broke = Failure("workflow", "ValueError", failed.failure.message, failed.failure.traceback)
    async with EpisodeRecorder(tmp_path / "episodes.jsonl", text) as recorder:
        recorder.record(first, split="train", step=0)
        for episode in (
            Episode("0:4:0", "0:4", "ok", reward=0.25),
            Episode("0:5:0", "0:5", "rejected"),
            Episode("0:6:0", "0:6", "workflow_error", failure=broke, tape=failed.tape),
        ):
            recorder.record(episode, split="train", step=1)
        evaluated = Episode("eval:0", "eval:0", "ok", reward=1.0)
        recorder.record(evaluated, split="eval at step 1", step=1)
        recorder.fate("trained", ["0:3:1"], prompt_id="0:3", step=2, version=2, why="")
        recorder.fate("swept", ["0:4:0"], prompt_id="0:4", step=2, version=2, why="too old")
    with (tmp_path / "episodes.jsonl").open("ab") as file:
        file.write(b'{"kind":"episode","id":"0:9:0","pro')
    return tmp_path


def ids(run, **filters):
    lines = list(listed(run, Filters(**filters), json=True))
    return [json.loads(line)["id"] for line in lines]


def test_the_table_says_what_became_of_each(run):
    heading, *lines, total = listed(run, Filters())
    assert heading.split()[:4] == ["id", "prompt", "split", "step"]
    became = dict(zip([line.split()[0] for line in lines], lines, strict=True))
    assert became["0:3:1"].endswith("trained on at step 2")
    assert became["0:4:0"].endswith("swept: too old")
    assert became["0:5:0"].endswith("rejected by its workflow")
    assert "workflow_error: ValueError: no such page" in became["0:6:0"]
    assert became["eval:0"].endswith("evaluated")
    assert became["0:3:1"].split()[4:9] == ["ok", "0.75", "2", "4", "0"]
    assert total == "5 episodes"


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"outcome": "rejected"}, ["0:5:0"]),
        ({"failed": True}, ["0:6:0"]),
        ({"dropped": True}, ["0:4:0", "0:5:0", "0:6:0"]),
        ({"prompt": "0:4"}, ["0:4:0"]),
        ({"split": "eval"}, ["eval:0"]),
        ({"step": 0}, ["0:3:1"]),
        ({"reward_below": 0.75}, ["0:4:0"]),
        ({"reward_above": 0.25}, ["0:3:1", "eval:0"]),
        ({"last": 2}, ["0:6:0", "eval:0"]),
        ({"last": 2, "split": "train"}, ["0:5:0", "0:6:0"]),
        ({"ids": ("0:4:0",)}, ["0:4:0"]),
    ],
)
def test_filters(run, filters, found):
    assert ids(run, **filters) == found


def test_one_is_shown_with_its_dialogue(run):
    out = "\n".join(listed(run, Filters(ids=("0:3:1",))))
    assert "trained on at step 2" in out
    assert "turn 1, goes on from turn 0: 5 + 2 tokens" in out
    assert out.index("  user: ?") < out.index("  reply: ef") < out.index("  tool: 3")
    assert "row 0: the replies of turns [0, 1], reward 0.75" in out


def test_a_failure_is_shown_with_its_traceback_and_nothing_steers_the_terminal(run):
    out = "\n".join(listed(run, Filters(ids=("0:6:0",))))
    assert "called with: cats, limit=3" in out
    assert "failure in workflow: ValueError: no such page" in out
    assert "in asks" in out
    assert r"\x1b]0;owned\x07\x1b[31mred\u202e\x9b[bold]\r\x00" in out
    assert all(one == "\n" or one.isprintable() for one in out)
    assert safe("é 日本\t👍") == "é 日本\t👍"


def test_an_id_that_is_not_there_is_named(run, tmp_path):
    with pytest.raises(DataError, match="is called 0:99:0"):
        list(listed(run, Filters(ids=("0:99:0",))))
    with pytest.raises(DataError, match="expected a run folder"):
        list(listed(tmp_path / "no", Filters()))


def test_lines_of_something_else_are_counted_and_shown_as_far_as_they_go(tmp_path):
    known = '"prompt_id": "0:1", "split": "train", "step": 0, "outcome": "ok", "reward": null'
    lines = (
        '{"id": 1}',
        "[1]",
        "no JSON",
        '{"kind": "fate"}',
        f'{{"id": "0:1:0", {known}, "schema": 9, "turns": [{{"tokens": 3}}]}}',
    )
    (tmp_path / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    _, shown, total, broken = listed(tmp_path, Filters())
    assert shown.startswith("0:1:0: its record cannot be shown (schema 9, expected 2): KeyError")
    assert (total, broken) == ("1 episodes", "4 lines are no records and could not be read")
    assert "cannot be shown" in next(listed(tmp_path, Filters(ids=["0:1:0"])))


def test_that_nothing_is_found_is_said(run, tmp_path):
    assert list(listed(run, Filters(step=9))) == ["none of 5 episodes is as asked for"]
    (line,) = listed(run, Filters(outcome="fine"))
    assert "outcomes are ok, rejected, truncated" in line
    assert line.endswith("not 'fine'")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "episodes.jsonl").touch()
    (line,) = listed(tmp_path / "new", Filters())
    assert line.startswith("no episode has ended so far")


def test_from_the_command_line_without_torch(run):
    code = (
        "import sys\nfrom areal_agent.cli import app\n"
        f"sys.argv = ['areal-agent', 'episodes', {str(run)!r}, '--dropped', '--last', '1']\n"
        "try:\n    app()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[1].startswith("0:6:0")
    assert lines[-1] == "False"
