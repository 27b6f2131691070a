"""CPU cost of recording an episode, beside the same episode unrecorded; and of reading it back.

All of it is the driver's: the tape while the episode runs, the line afterwards.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from areal_agent.data.chat import ChatFormat
from areal_agent.models.load import resolve_model
from areal_agent.rollout.episode import EpisodeSpec, run_episode
from areal_agent.rollout.record_reader import Records
from areal_agent.rollout.records import EpisodeRecorder
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters, ModelRequest


class Turns(RolloutWorkflow):
    """A dialogue of some turns of some tokens."""

    def __init__(self, turns: int, tokens: int) -> None:
        self.turns = turns
        self.gconfig = GenerationHyperparameters(max_new_tokens=tokens, max_tokens=1_000_000)

    async def arun_episode(self, engine, data):
        ids, responses = list(range(20, 40)), []
        for _ in range(self.turns):
            request = ModelRequest(ids, self.gconfig, metadata={"messages": data["messages"]})
            responses.append(await engine.agenerate(request))
            ids = [*ids, *responses[-1].output_tokens, 9]
        return Trajectory.from_turns(responses, 1.0)


async def measure(n: int, turns: int, tokens: int) -> dict[str, float]:
    """Milliseconds of CPU an episode."""
    chat = ChatFormat.from_folder(resolve_model("builtin:calculator"))
    reply = Reply([10 + i % 20 for i in range(tokens)], [-1 / (3 + i) for i in range(tokens)])
    row = {"messages": [{"role": "user", "content": "How many are left?"}], "answer": "7"}
    spec = EpisodeSpec("0:1:0", "0:1", seed=1, epoch=0, index=1)
    workflow = Turns(turns, tokens)
    started = time.process_time()
    episodes = []
    for _ in range(n):
        run = await run_episode(workflow, FakeEngine(lambda request: reply), row, spec)
        episodes.append(run.episode)
    ran = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        async with EpisodeRecorder(Path(folder) / "episodes.jsonl", chat.decode) as recorder:
            for episode in episodes:
                recorder.record(episode, split="train", step=0)
            queued = time.process_time()
        written = time.process_time()
        assert recorder.lost == 0
        records = Records(Path(folder))
        assert sum(1 for _ in records.episodes()) == n
        read = time.process_time()
        size = records.path.stat().st_size
    figures = {
        "episode_ms": ran - started,
        "queue_ms": queued - ran,
        "record_ms": written - queued,
        "read_ms": read - written,
    }
    return {name: 1e3 * seconds / n for name, seconds in figures.items()} | {"bytes": size / n}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    for turns, tokens in ((1, 8), (3, 16), (5, 200), (10, 1000)):
        n = max(args.n * 24 // (turns * tokens), 10)
        found = asyncio.run(measure(min(n, args.n), turns, tokens))
        results[f"{turns}x{tokens}"] = found
        print(
            f"{turns:3} turns of {tokens:4} tokens: {found['episode_ms']:.3f} ms an episode by "
            f"itself, {found['queue_ms']:.4f} to hand it over, {found['record_ms']:.3f} to make "
            f"and write its line of {found['bytes']:.0f} bytes, {found['read_ms']:.3f} to read it"
        )
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
