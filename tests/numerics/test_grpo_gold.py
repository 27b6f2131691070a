"""Losses and advantages against numbers from public reference implementations."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from areal_agent.algorithms.advantages import group_advantages
from areal_agent.algorithms.losses import ClipRange, policy_loss

GOLD = json.loads((Path(__file__).parents[1] / "gold" / "grpo.json").read_text("utf-8"))
CLIP = ClipRange(low=0.2, high=0.28)


def given(name: str) -> Tensor:
    return torch.tensor(GOLD["inputs"][name], dtype=torch.float64)


@pytest.mark.parametrize(
    ("case", "behaviour_cap", "tolerance"),
    [
        ("areal_ppo/token-mean", None, 1e-12),
        ("trl_dapo/token-mean", None, 1e-12),
        # The reference takes its behaviour weights in float32.
        ("areal_decoupled_mask1.5/token-mean", 1.5, 1e-7),
    ],
)
def test_value_and_gradient(case: str, behaviour_cap: float | None, tolerance: float) -> None:
    logprobs = given("logprobs").requires_grad_()
    mask = given("mask").bool()
    out = policy_loss(
        logprobs,
        given("old_logprobs"),
        given("advantages")[:, None].expand_as(mask),
        mask,
        clip=CLIP,
        behaviour_logprobs=given("behavior_logprobs") if behaviour_cap else None,
        behaviour_cap=behaviour_cap,
    )
    loss = out.loss / out.count
    loss.backward()
    assert loss.item() == pytest.approx(GOLD["cases"][case]["value"], abs=tolerance)
    expected = torch.tensor(GOLD["cases"][case]["grad_wrt_logprobs"], dtype=torch.float64)
    torch.testing.assert_close(logprobs.grad, expected, rtol=0, atol=tolerance)
    # The data reaches each branch: otherwise equality would say little.
    assert 0.1 < float(out.sums["clip_share"][0] / out.count) < 0.9
    if behaviour_cap:
        assert 0.1 < float(out.sums["behaviour_capped_share"][0] / out.count) < 0.9
        assert float(out.sums["behaviour_weight"][0] / out.count) > behaviour_cap


@pytest.mark.parametrize(("wrong_clip", "wrong_cap"), [((0.2, 0.2), 1.5), ((0.2, 0.28), 5.0)])
def test_wrong_settings_would_be_seen(wrong_clip: tuple[float, float], wrong_cap: float) -> None:
    mask = given("mask").bool()
    out = policy_loss(
        given("logprobs"),
        given("old_logprobs"),
        given("advantages")[:, None].expand_as(mask),
        mask,
        clip=ClipRange(*wrong_clip),
        behaviour_logprobs=given("behavior_logprobs"),
        behaviour_cap=wrong_cap,
    )
    gold = GOLD["cases"]["areal_decoupled_mask1.5/token-mean"]["value"]
    assert abs(float(out.loss / out.count) - gold) > 1e-3


@pytest.mark.parametrize(("case", "by_std"), [("adv/grpo_std", True), ("adv/dr_grpo", False)])
def test_advantages(case: str, by_std: bool) -> None:
    mask = given("mask")
    found = group_advantages(
        given("rewards"),
        given("group_ids").long(),
        torch.arange(len(mask)),
        normalize_by_std=by_std,
        std_eps=1e-6,
    )
    expected = torch.tensor(GOLD["cases"][case]["value"], dtype=torch.float32)
    torch.testing.assert_close(found.values[:, None] * mask.float(), expected, rtol=0, atol=1e-6)


# Four tokens, the last one off the mask.
LP = [0.0, 0.5, -0.5, 9.0]
OLD = [0.0, -2.0, 0.0, 0.0]
ADVANTAGES = [1.0, 1.0, -1.0, 5.0]


@pytest.mark.parametrize(
    ("high", "decoupled", "expected"),
    [
        (0.2, False, -0.4666667),
        (0.28, False, -0.4933333),
        (0.2, True, -0.0666667),
    ],
)
def test_four_tokens_by_hand(high: float, decoupled: bool, expected: float) -> None:
    def row(values: list[float]) -> Tensor:
        return torch.tensor([values], dtype=torch.float64)

    mask = torch.tensor([[True, True, True, False]])
    out = policy_loss(
        row(LP),
        torch.zeros(1, 4, dtype=torch.float64),
        row(ADVANTAGES),
        mask,
        clip=ClipRange(0.2, high),
        behaviour_logprobs=row(OLD) if decoupled else None,
        behaviour_cap=5.0 if decoupled else None,
    )
    assert float(out.loss / out.count) == pytest.approx(expected, abs=1e-6)
    assert int(out.count) == 3
    assert int(out.sums["clip_share"][0]) == 2
    if decoupled:
        assert int(out.sums["behaviour_capped_share"][0]) == 1
