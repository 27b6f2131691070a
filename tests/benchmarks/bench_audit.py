"""What the audit of captured turns costs a server that is kept busy, and how far logprobs differ.

The same episodes run against one embedded server with several shares of their turns audited, in
alternating rounds; the first share is the control. The cost is the server's CPU time.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from areal_agent.config.inference import GatewayConfig, RolloutConfig, ServerConfig
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.launch.local import launch_embedded_servers
from areal_agent.models.load import resolve_model
from areal_agent.net.clients import HttpClients
from areal_agent.rollout.audit import CaptureAudit
from areal_agent.rollout.executor import RolloutExecutor
from areal_agent.rollout.grouped import GroupedRolloutWorkflow
from areal_agent.rollout.workflow import RolloutWorkflow
from areal_agent.trajectory import Trajectory
from areal_agent.types import GenerationHyperparameters, ModelRequest

GROUP = 8
KEY = "control key of the benchmark"
FRACTIONS = (0.0, 0.02, 0.1, 0.5)


class Turn(RolloutWorkflow):
    """One reply of `reply` tokens to a prompt of `prompt` tokens."""

    def __init__(self, prompt: int, reply: int) -> None:
        self.prompt = prompt
        self.gconfig = GenerationHyperparameters(
            max_new_tokens=reply, max_tokens=4096, ignore_eos=True
        )

    async def arun_episode(self, engine, data):
        ids = [5 + (data["i"] + k) % 40 for k in range(self.prompt)]
        response = await engine.agenerate(ModelRequest(ids, self.gconfig))
        return Trajectory.from_response(response, 1.0)


def server_seconds() -> float:
    """CPU seconds of the server so far."""
    children = psutil.Process().children(recursive=True)
    times = [child.cpu_times() for child in children if "serve" in child.cmdline()]
    return sum(one.user + one.system for one in times)


async def measure(engine, workflow, fraction: float, n: int, folder: Path) -> dict[str, float]:
    """CPU seconds of `n` turns, and what the audit counted."""
    config = GatewayConfig(audit_fraction=fraction, audit_limit=n, audit_tolerance=1e6)
    rollout = RolloutConfig(
        max_concurrent_rollouts=64, consumer_batch_size=n // GROUP, max_head_offpolicyness=0
    )
    prompts = ((f"0:{i}", 0, i, {"i": i}) for i in range(n // GROUP))
    started = server_seconds()
    async with CaptureAudit(engine, config, folder / "differs.jsonl") as audit:
        grouped = GroupedRolloutWorkflow(workflow, GROUP)
        async with RolloutExecutor(
            audit.watched, grouped, prompts, config=rollout, seed=1
        ) as executor:
            await executor.next_batch()
        await audit.settle(60.0)
        seconds = server_seconds() - started
        return {"seconds": seconds, **audit.take_metrics()}


async def bench(args: argparse.Namespace, folder: Path) -> dict[float, list[dict[str, float]]]:
    """Results of each share, round by round."""
    results: dict[float, list[dict[str, float]]] = {fraction: [] for fraction in FRACTIONS}
    model = resolve_model(args.model)
    server = ServerConfig(dtype=args.dtype, device=args.device)
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(
            launch_embedded_servers(server, model, n_servers=1, log_dir=folder, control_key=KEY)
        )
        clients = await stack.enter_async_context(HttpClients())
        engine = await stack.enter_async_context(
            HttpInferenceEngine(
                [servers.endpoints[0].url], clients=clients, model=model.name, control_key=KEY
            )
        )
        workflow = Turn(args.prompt, args.reply)
        await measure(engine, workflow, 0.0, args.n, folder)  # warms up
        for _ in range(args.rounds):
            for fraction in FRACTIONS:
                results[fraction].append(await measure(engine, workflow, fraction, args.n, folder))
    return results


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin:calculator")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=512, help="turns in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=40, help="tokens")
    parser.add_argument("--reply", type=int, default=24, help="tokens")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(bench(args, Path(folder)))
    control = statistics.median(one["seconds"] for one in results[FRACTIONS[0]])
    figures = {}
    for fraction, rounds in results.items():
        seconds = statistics.median(one["seconds"] for one in rounds)
        audited = statistics.median(one.get("capture/exact", 0) for one in rounds)
        abs_max = max(one.get("capture/abs_max", 0.0) for one in rounds)
        figures[fraction] = {
            "seconds": seconds,
            "added_share": seconds / control - 1,
            "audited": audited,
            "abs_max": abs_max,
        }
        print(
            f"{fraction:5.2f} audited: {seconds:.2f} s for {args.n} turns, "
            f"{seconds / control - 1:+.1%}; {audited:.0f} scored, largest difference {abs_max:.2g}"
        )
    if args.json:
        print(json.dumps({"turns": args.n, "fractions": figures}))


if __name__ == "__main__":
    main()
