"""What people type: ``areal-agent train | serve | config``. Heavy imports happen inside commands."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from areal_agent.errors import ArealAgentError

app = typer.Typer(
    name="areal-agent",
    help="Asynchronous reinforcement learning for LLM agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Settings file (YAML).", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings to replace: a.b=c.", show_default=False),
]


@app.command()
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print summary.json as the last line, nothing else.")
    ] = False,
) -> None:
    """Train a policy by reinforcement learning."""
    from areal_agent.config.load import load_config  # noqa: PLC0415

    loaded = load_config(config, overrides or [])
    from areal_agent.trainer.rl import RLTrainer  # noqa: PLC0415

    summary = run_until_signal(RLTrainer(loaded, quiet=quiet or json).train())
    if json:
        typer.echo(summary.to_json())


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="Hugging Face folder or builtin:NAME.")],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 lets the system choose.")] = 8000,
) -> None:
    """Serve a model over the OpenAI protocol."""
    raise NotImplementedError


def run_until_signal(main: Coroutine[Any, Any, Any]) -> Any:
    """Run `main`; SIGINT or SIGTERM cancels it so that it cleans up, a second one ends at once.

    Exits with 128 + the signal's number when interrupted.
    """
    received: list[int] = []

    async def supervised() -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def interrupt(number: int) -> None:
            received.append(number)
            if len(received) > 1:
                os._exit(128 + number)
            print("interrupted: cleaning up (once more to end at once)", file=sys.stderr)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt, number)
        return await main

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None


def main() -> None:
    """Run the command line; errors of ours become one message and an exit code."""
    try:
        app()
    except ArealAgentError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
