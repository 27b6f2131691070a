"""What is refused, and how it is said."""

import pytest
from config_support import load, refused

from areal_agent.config.algorithm import GrpoConfig


@pytest.mark.parametrize(
    ("more", "overrides", "said"),
    [
        ("sed: 1\n", [], "run.yaml:7: sed: there is no such setting; did you mean 'seed'?"),
        (
            "gconfig:\n  temprature: 1\n",
            [],
            "run.yaml:8: gconfig.temprature: there is no such setting; did you mean "
            "'gconfig.temperature'?",
        ),
        ("", ["rollout.limits.on_turns=keep"],
         "override rollout.limits.on_turns=keep: rollout.limits.on_turns: expected 'reject' or a "
         "number, got 'keep'"),
        ("lr: 1\n", [], "run.yaml:7: lr: there is no such setting; "
         "did you mean 'actor.optimizer.lr'?"),
        ("", ["gconfig.top_p=2"],
         "override gconfig.top_p=2: gconfig.top_p: expected at most 1.0, got 2"),
        ("seed: '8'\n", [],
         "run.yaml:7: seed: expected a whole number, got '8': leave out the quotes"),
        ("seed: eight\n", [], "run.yaml:7: seed: expected a whole number, got 'eight'"),
        ("seed: 1.5\n", [], "run.yaml:7: seed: expected a whole number, got 1.5"),
        ("seed: 1e5\n", [],
         "run.yaml:7: seed: expected a whole number, got 100000.0: write 100000"),
        ("seed: true\n", [], "run.yaml:7: seed: expected a whole number, got true"),
        ("seed:\n", [], "run.yaml:7: seed: expected a whole number, got null"),
        (
            "trial_name: 7\n",
            [],
            "run.yaml:7: trial_name: expected text, got 7: if it is meant as text, quote it: '7'",
        ),
        (
            "",
            ["trial_name=7"],
            "override trial_name=7: trial_name: expected text, got 7: if it is meant as text, "
            "quote it twice: trial_name='\"7\"'",
        ),
        ("evaluator: {before_train: yes}\n", [],
         "run.yaml:7: evaluator.before_train: expected true or false, got 'yes'"),
        (
            "on_existing: refuze\n",
            [],
            "run.yaml:7: on_existing: expected 'number', 'refuse' or 'overwrite', got 'refuze'; "
            "did you mean 'refuse'?",
        ),
        ("gconfig: {stop: [a, 3]}\n", [],
         "run.yaml:7: gconfig.stop[1]: expected text, got 3: "
         "if it is meant as text, quote it: '3'"),
        ("gconfig: {stop: a}\n", [], "run.yaml:7: gconfig.stop: expected a list, got 'a'"),
        ("saver: 3\n", [], "run.yaml:7: saver: expected a section of 'key: value' lines, got 3"),
        ("gconfig: {temperature: .inf}\n", [],
         "run.yaml:7: gconfig.temperature: expected a finite number, got inf"),
        (
            "gconfig: {min_new_tokens: 9, max_new_tokens: 8}\n",
            [],
            "run.yaml:7: gconfig: min_new_tokens 9 is above max_new_tokens 8: lower the first or "
            "raise the second",
        ),
    ],
)  # fmt: skip
def test_one_problem(more: str, overrides: list[str], said: str) -> None:
    assert refused(more, *overrides) == ["a problem with the settings in run.yaml:", said]


def test_all_problems_at_once() -> None:
    problems = refused("sed: 1\nseed: x\n", "gconfig.top_p=2", "model=null")

    assert problems[0] == "4 problems with the settings in run.yaml:"
    assert {problem.rsplit(": ", 2)[1] for problem in problems[1:]} == {
        "seed",
        "gconfig.top_p",
        "model",
        "sed",
    }


def test_all_contradictions_at_once() -> None:
    problems = refused(
        "",
        "total_train_steps=null",
        "gconfig.n_samples=1",
        "gconfig.temperature=0",
        "rollout.backend=vllm:d2",
        "actor.backend=fsdp:d4d2",
    )

    assert len(problems) == 1 + 5 + 2  # the caret's two lines
    assert problems[1].startswith(
        "override total_train_steps=null: total_train_steps: nothing says"
    )
    assert "gconfig.n_samples is 1, but grpo compares the members of a group" in problems[2]
    assert "gconfig.temperature is 0 or greedy is set" in problems[3]
    assert "rollout.backend: backend 'vllm' is not installed yet: use 'embedded'" in problems[4]
    assert "'d' (data parallel) is given twice" in problems[5]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rollout.max_concurrent_rollouts=7"], "raise it to 8 or more"),
        (["rollout.min_concurrent_rollouts=129"], "at most max_concurrent_rollouts = 128, got 129"),
        (["rollout.supervisor.end_seconds=60"], "end_seconds is 60, before cancel_seconds = 900"),
        (["actor.ppo_n_minibatches=129"], "cannot be cut into 129 minibatches"),
        (["evaluator.freq_steps=5"], "but valid_dataset is null"),
        (["rollout.backend=local:d1"], "local is for actor"),
        (["actor.backend=embedded:d1"], "embedded is for rollout"),
        (["actor.backend=local:d2"], "local trains on one device"),
        (["rollout.server.port=65530", "rollout.backend=embedded:d16"], "from port 65530 to 65545"),
        (["gconfig.greedy=true"], "training needs sampled tokens"),
    ],
)
def test_contradictions(overrides: list[str], said: str) -> None:
    problems = refused("", *overrides)

    assert said in problems[1]
    assert problems[1].startswith(f"override {overrides[0]}: ")


def test_what_is_at_the_edge_but_fits() -> None:
    load("", "rollout.server.host=0.0.0.0")
    load("", "rollout.server.host=::1")
    load("", "rollout.server.host=localhost")
    load("", "rollout.server.port=65520", "rollout.backend=embedded:d16")
    load("", "rollout.max_concurrent_rollouts=8", "rollout.max_head_offpolicyness=0")
    load("valid_dataset: {use: held.jsonl}\n", "evaluator.freq_steps=5")


def test_no_decoupled_loss_means_no_cap() -> None:
    assert (
        load("", "algorithm.use_decoupled_loss=false").config.algorithm.behave_imp_weight_cap
        is None
    )
    assert GrpoConfig().behave_imp_weight_cap == 5.0
    problems = refused(
        "", "algorithm.use_decoupled_loss=false", "algorithm.behave_imp_weight_cap=3"
    )
    assert "behave_imp_weight_cap 3.0 caps the decoupled weight" in problems[1]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "expected section.key=value, for instance actor.optimizer.lr=1e-4"),
        ("=3", "expected section.key=value"),
        ("gconfig..top_p=3", "expected section.key=value"),
        ("--seed=3", "leave out '-'"),
        ("+seed=3", "leave out '+'"),
        ("gconfig.stop=[a", "To give it as text, quote it: gconfig.stop='\"[a\"'"),
    ],
)
def test_overrides_that_do_not_parse(override: str, said: str) -> None:
    problems = refused("", override)

    assert problems[1].startswith(f"override {override!r}: ")
    assert said in problems[1]


def test_an_override_inside_something_that_is_no_section() -> None:
    more = "eval_gconfig: ${gconfig}\ngconfig: {stop: [a]}\n"

    assert refused(more, "eval_gconfig.top_k=3", "gconfig.stop.0=b")[1:] == [
        "override eval_gconfig.top_k=3: eval_gconfig is '${gconfig}' (run.yaml:7), not a section: "
        "give it as a whole",
        "override gconfig.stop.0=b: gconfig.stop is ['a'] (run.yaml:8), not a section: "
        "give it as a whole",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("seed: 1\nseed: 2\n", "run.yaml:8:1: the key 'seed' stands twice: remove one"),
        ("\tx: 1\n", "run.yaml:7:1: expected YAML: while scanning for the next token"),
        ("gconfig: [\n", "run.yaml:8:1: expected YAML: while parsing a flow node"),
        ("1: 2\n", "run.yaml:7:1: expected text as key, got 1: quote it"),
        ("seed: !!python/name:os.system\n", "run.yaml:7:7: expected plain YAML"),
        ("gconfig: !!set {a}\n", "run.yaml:7:10: expected plain YAML, got the tag"),
        ("gconfig: &a {b: *a}\n", "run.yaml:7:10: an anchor contains itself"),
        ("gconfig: *a\n", "run.yaml:7:10: expected YAML: found undefined alias 'a'"),
        ("---\na: 1\n", "run.yaml:7:1: expected YAML: expected a single document"),
        ("trial_name: '\\x00\x00'\n", "run.yaml: expected YAML: unacceptable character"),
        ('trial_name: "\\ud800"\n', "run.yaml:7:13: expected plain YAML"),
    ],
)
def test_files_that_do_not_parse(more: str, said: str) -> None:
    assert refused(more)[0].startswith(said)


def test_unknown_setting_lists_what_there_is() -> None:
    problems = refused("saver: {zzz: 1}\n")

    assert problems[1] == (
        "run.yaml:7: saver.zzz: there is no such setting; there are: freq_epochs, freq_steps, "
        "freq_secs, keep"
    )
