"""What people type: ``areal-agent train | eval | serve``… Each command imports what it needs."""

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from areal_agent.aio import settle_collector
from areal_agent.errors import ArealAgentError, ConfigError
from areal_agent.until_end import end_process, run_until_signal

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
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings to replace: a.b=c.", show_default=False
    ),
]

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
EpisodeIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Episodes.", show_default=False)
]

DType = Literal["float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]
UpdateMode = Literal["keep", "recompute", "abort"]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 lets the system choose.")]
MaxRunning = Annotated[int, typer.Option(min=1, help="Requests decoded together.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(min=2, help="Most tokens of prompt and reply; the model's by default."),
]
ToolParser = Annotated[
    str | None, typer.Option(help="How tool calls are read; the model's own way by default.")
]
ReasoningParser = Annotated[
    str | None, typer.Option(help="How reasoning is read; the model's own way by default.")
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
    """Train a policy by reinforcement learning.

    Exit code 1: a part of the run failed. 2: the settings are wrong. 3: no batch could be formed.
    4: the run made no progress, see `areal-agent stall`.
    """
    from areal_agent.config.load import load_config

    loaded = load_config(config, overrides or [])
    if quiet:
        logging.getLogger("areal_agent").setLevel(logging.ERROR)
    from areal_agent.stats.display import make_display
    from areal_agent.trainer.rl import RLTrainer

    settle_collector()
    display = make_display(quiet=quiet or json)
    summary = run_until_signal(RLTrainer(loaded, display=display).train())
    if json:
        typer.echo(summary.to_json())


@app.command("eval")
def evaluate(
    config: ConfigFile,
    overrides: Overrides = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print summary.json as the last line, nothing else.")
    ] = False,
) -> None:
    """Evaluate on held-out problems: the model of the settings, or an endpoint.

    With inference.type=openai, agents talk to the endpoint at inference.base_url. Exit code 1: it
    cannot be reached. 3: no episode could be scored. 4: no progress was made.
    """
    from areal_agent.config.load import load_config

    loaded = load_config(config, overrides or [])
    if quiet:
        logging.getLogger("areal_agent").setLevel(logging.ERROR)
    from areal_agent.stats.evaluation import EvaluationDisplay
    from areal_agent.trainer import evaluate as evaluation

    settle_collector()
    display = EvaluationDisplay(quiet=quiet or json)
    summary = run_until_signal(evaluation.evaluate(loaded, display=display))
    if json:
        typer.echo(summary.to_json())


@app.command()
def serve(  # noqa: PLR0913, PLR0917 - options of a command
    model: Annotated[
        str, typer.Argument(help="Hugging Face folder, or builtin:NAME.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Port = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name that clients use; the folder's by default.")
    ] = None,
    max_running_requests: MaxRunning = 128,
    max_model_len: MaxModelLen = None,
    dtype: Annotated[DType, typer.Option(help="Precision of weights and cache.")] = "float32",
    device: Annotated[Device, typer.Option(help="Where the model runs.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    weight_update: Annotated[
        UpdateMode, typer.Option(help="What running requests do when weights are updated.")
    ] = "keep",
    tool_parser: ToolParser = None,
    reasoning_parser: ReasoningParser = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written once the server answers, as JSON.")
    ] = None,
    instance_id: Annotated[
        str | None, typer.Option(help="What /health says of itself; random by default.")
    ] = None,
) -> None:
    """Serve a model over the OpenAI protocol.

    AREAL_AGENT_CONTROL_KEY guards the control routes (without it a random key is made and printed
    once); AREAL_AGENT_API_KEY guards the others (without it they are open).
    """
    from areal_agent.lifeline import watch_parent

    watch_parent()  # before the slow imports below: the parent may die during them
    from areal_agent.inference.embedded import ServeSettings, serve
    from areal_agent.models.load import resolve_model

    given: dict[str, Any] = {} if instance_id is None else {"instance_id": instance_id}
    settings = ServeSettings(
        model=resolve_model(model),
        host=host,
        port=port,
        served_model_name=served_model_name,
        max_running_requests=max_running_requests,
        max_model_len=max_model_len,
        dtype=dtype,
        device=device,
        threads=threads,
        weight_update=weight_update,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        ready_file=ready_file,
        **given,
    )
    serve(settings)


@app.command("config")
def show_config(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Settings file (YAML).")
    ] = None,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="Print values and origins as JSON.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of settings files.")
    ] = False,
) -> None:
    """Print the resolved settings and where each value comes from."""
    import json as json_module

    from areal_agent.config.load import load_config
    from areal_agent.config.render import (
        config_as_json,
        json_schema,
        render_config,
    )

    if schema:
        typer.echo(json_module.dumps(json_schema(), indent=2))
        return
    if config is None:
        raise ConfigError("expected a settings file: areal-agent config CONFIG, or --schema")
    loaded = load_config(config, overrides or [])
    if json:
        typer.echo(json_module.dumps(config_as_json(loaded), indent=2))
    else:
        typer.echo(render_config(loaded), nl=False)


@app.command()
def episodes(  # noqa: PLR0913, PLR0917 - options of a command
    run: RunPath,
    ids: EpisodeIds = None,
    outcome: Annotated[str | None, typer.Option(help="Only those that ended so.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="Only those of training that were not trained on.")
    ] = False,
    prompt: Annotated[str | None, typer.Option(help="Only those of this prompt.")] = None,
    split: Annotated[str | None, typer.Option(help="Only train, or eval.")] = None,
    step: Annotated[int | None, typer.Option(help="Only those that ended after so many.")] = None,
    reward_below: Annotated[float | None, typer.Option(help="Only those that earned less.")] = None,
    reward_above: Annotated[float | None, typer.Option(help="Only those that earned more.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print whole records, one a line.")] = False,
) -> None:
    """List the episodes of a run, also of one that goes on; with IDs, show them whole."""
    from areal_agent.rollout.record_list import Filters, listed

    filters = Filters(
        ids=ids or (),
        outcome=outcome,
        failed=failed,
        dropped=dropped,
        prompt=prompt,
        split=split,
        step=step,
        reward_below=reward_below,
        reward_above=reward_above,
        last=last,
    )
    for line in listed(run, filters, json=json):
        typer.echo(line)


@app.command()
def replay(
    run: RunPath,
    ids: EpisodeIds = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings to use instead of the run's own.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON an episode.")] = False,
) -> None:
    """Run the code of recorded episodes again, offline, on what they were told then.

    Exit code 1: an episode does something else than when it was recorded.
    """
    from areal_agent.trainer import replay as replaying
    from areal_agent.trainer import replay_report

    def show(done: Any) -> None:
        for line in [replay_report.as_json(done)] if json else replay_report.told(done):
            typer.echo(line)

    results = run_until_signal(replaying.replay(run, ids or (), settings=config, on_replayed=show))
    if not json:
        for line in replay_report.total(results):
            typer.echo(line)
    if any(done.verdict == "differs" for done in results):
        raise SystemExit(1)


@app.command()
def stall(
    run: RunPath,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Ask a running job what it waits for: episodes, servers, trainer, and the lines of their code.

    Works while its event loop is blocked. Of a run that is not running, prints the last report that
    it wrote, if it did. Exit code 1: the run is not running, or does not answer.
    """
    from areal_agent.rollout.stall_socket import ask

    answer = ask(run)
    if answer.report is not None:
        report = answer.report
        typer.echo(report.to_json() if json else "\n".join(report.lines()))
    if answer.not_running:
        last = "it left no report" if answer.report is None else "this is the last it reported"
        raise ArealAgentError(f"{answer.not_running}; {last}")


def main() -> None:
    """Run the command line; errors of ours become one message and an exit code."""
    end_process(app)


if __name__ == "__main__":
    main()
