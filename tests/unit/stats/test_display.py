"""What a run shows, on a terminal and off it."""

from io import StringIO

from rich.console import Console

from areal_agent.stats.display import (
    Display,
    LiveDisplay,
    PlainDisplay,
    QuietDisplay,
    StepProgress,
    make_display,
)
from areal_agent.stats.outcomes import outcome_facts
from areal_agent.stats.summary import SampleDialogue, summary_text


def test_wrong_models_are_told_from_failures_of_ours():
    facts = outcome_facts(
        {"ok": 1100, "truncated": 18, "rejected": 6, "timeout": 1, "reward_error": 3, "stale": 0},
        {"zero_variance": 4, "refused": 0},
        wrong=54,
    )
    assert facts == [
        "model wrong 54 of 1,118",
        "rejected 6",
        "we failed 4 (reward_error 3, timeout 1)",
        "groups dropped 4 (zero_variance 4)",
    ]
    assert outcome_facts({"ok": 0}, {}, wrong=0) == []


STEP = StepProgress(
    step=3,
    reward=0.5,
    accuracy=0.625,
    staleness=2,
    server_tokens_per_second=3210.4,
    trainer_tokens_per_second=5400,
    seconds=1.94,
)


def console(*, terminal: bool) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=100, legacy_windows=False)


def shown(on: Console) -> str:
    assert isinstance(on.file, StringIO)
    return on.file.getvalue()


def run(display: Display) -> None:
    with display:
        display.waiting("servers to start")
        display.start(40)
        display.update(STEP)
        display.waiting("2 of 16 groups")
        display.note("saved [bold]step-000003[/bold]")
        display.summary([("accuracy", "0.2 → 0.9")])


def test_off_a_terminal_plain_lines() -> None:
    out = console(terminal=False)
    display = make_display(console=out)
    assert isinstance(display, PlainDisplay)
    run(display)
    lines = shown(out).splitlines()
    assert lines[:4] == [
        "waiting for servers to start",
        "training for 40 steps",
        "step 3/40, reward 0.500, held-out accuracy 0.625, staleness 2, server 3,210 tokens/s, "
        "trainer 5,400 tokens/s, 1.9 s",
        "saved [bold]step-000003[/bold]",
    ]
    assert "2 of 16 groups" not in shown(out)
    assert "0.2 → 0.9" in shown(out)
    assert "\x1b" not in shown(out)


def test_on_a_terminal_live() -> None:
    out = console(terminal=True)
    display = make_display(console=out)
    assert isinstance(display, LiveDisplay)
    run(display)
    assert "step 3/40" in shown(out)
    assert "saved [bold]step-000003[/bold]" in shown(out)
    assert shown(out).rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_quiet_shows_nothing() -> None:
    out = console(terminal=True)
    display = make_display(quiet=True, console=out)
    assert isinstance(display, QuietDisplay)
    run(display)
    assert shown(out) == ""


def test_live_keeps_the_last_accuracy_and_says_how_long_it_waits() -> None:
    now = [0.0]
    out = console(terminal=False)
    display = LiveDisplay(out, clock=lambda: now[0])
    display.start(40)
    display.update(STEP)
    display.update(StepProgress(step=4, reward=0.75, staleness=1))
    now[0] = 5.0
    display.waiting("2 of 16 groups")
    now[0] = 8.0
    display.waiting("2 of 16 groups")
    now[0] = 12.0
    out.print(display.render())
    text = shown(out)
    assert "step 4/40" in text
    assert "12 s" in text
    assert "reward 0.750   held-out accuracy 0.625   staleness 1" in text
    assert "waiting for 2 of 16 groups (7 s)" in text
    display.waiting("")
    out.print(display.render())
    assert shown(out).count("waiting for") == 1


def test_the_summary_shows_replies_as_they_are() -> None:
    before = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "[red]5[/red] [/oops] \x1b[2J\x07\r"},
    ]
    after = [
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "calc", "arguments": '{"e": "2+2"}'}}],
        },
        {"role": "tool", "content": "4"},
    ]
    text = summary_text(
        [("accuracy before", "0.195"), ("model", "runs/[a]/model")],
        [SampleDialogue(before, after, 0.0, 1.0), SampleDialogue([], [])],
        width=120,
    )
    assert "accuracy before │ 0.195" in text
    assert "runs/[a]/model" in text
    assert "Before (reward 0)" in text
    assert "After (reward 1)" in text
    assert r"assistant: [red]5[/red] [/oops] \x1b[2J\x07\r" in text
    assert '→ calc({"e": "2+2"})' in text
    assert "tool: 4" in text
    assert text.count("(none)") == 2
    assert "\x1b" not in text


def test_a_long_wait_off_a_terminal_is_told_now_and_then() -> None:
    out, now = StringIO(), [0.0]
    display = PlainDisplay(Console(file=out, width=100), clock=lambda: now[0])
    for done in range(40):
        display.waiting(f"evaluation: {done} of 40 problems")
        now[0] += 0.5
    assert out.getvalue().splitlines() == [
        "waiting for evaluation: 0 of 40 problems",
        "waiting for evaluation: 20 of 40 problems",
    ]


def test_off_a_terminal_paths_stay_in_one_piece() -> None:
    out, path = StringIO(), "/somewhere/" + "x" * 120 + "/metrics.jsonl"
    display = PlainDisplay(Console(file=out, width=80))
    display.summary([("metrics", path), ("a name that is rather long", "0.2")])
    assert path in out.getvalue()
