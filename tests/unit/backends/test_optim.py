"""The optimiser: rates, decay, and a state that goes through files."""

import pytest
import torch
from torch import nn

from areal_agent.backends.optim import Optimizer, learning_rate
from areal_agent.config.training import OptimizerConfig


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ("cosine", [0.5, 1.0, 1.0, 0.882843, 0.6, 0.317157, 0.2, 0.2]),
    ],
)
def test_rates(kind: str, expected: list[float]) -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=2, lr_scheduler_type=kind, min_lr_ratio=0.2)
    got = [learning_rate(config, step, 7) for step in range(8)]
    assert got == pytest.approx(expected, abs=1e-5)


def test_a_schedule_of_one_step_is_no_division_by_zero() -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=0, lr_scheduler_type="linear")
    assert learning_rate(config, 0, 1) == 1.0


def parameters() -> dict[str, nn.Parameter]:
    return {"w": nn.Parameter(torch.ones(2, 3)), "b": nn.Parameter(torch.ones(3))}


def test_only_matrices_decay() -> None:
    params = parameters()
    optimizer = Optimizer(params, OptimizerConfig(lr=0.1, weight_decay=0.5), total_steps=10)
    for p in params.values():
        p.grad = torch.zeros_like(p)
    optimizer.step(torch.tensor(0.0))
    assert torch.allclose(params["w"], torch.full((2, 3), 0.95))
    assert torch.equal(params["b"], torch.ones(3))


def test_clipping_is_by_the_norm_of_all() -> None:
    # With this eps a first AdamW step is about lr / eps times the gradient.
    config = OptimizerConfig(lr=1.0, eps=1e4, gradient_clipping=1.0)
    params = parameters()
    optimizer = Optimizer(params, config, total_steps=10)
    params["w"].grad, params["b"].grad = torch.full((2, 3), 3.0), torch.full((3,), 4.0)
    norm = nn.utils.get_total_norm([p.grad for p in params.values() if p.grad is not None])
    optimizer.step(norm)
    expected = 4.0 / float(norm) * 1e-4
    assert float((1 - params["b"]).detach().mean()) == pytest.approx(expected, rel=1e-2)


def test_state_goes_on_where_it_was() -> None:
    config = OptimizerConfig(lr=0.1, lr_scheduler_type="linear")

    def run(optimizer: Optimizer, params: dict[str, nn.Parameter], steps: range) -> None:
        for i in steps:
            for p in params.values():
                p.grad = torch.sin(torch.arange(p.numel()) + float(i)).view_as(p)
            optimizer.step(torch.tensor(0.5))

    first = parameters()
    optimizer = Optimizer(first, config, total_steps=10)
    assert all((v == 0).all() for v in optimizer.tensors().values())
    run(optimizer, first, range(4))
    saved = {name: value.clone() for name, value in optimizer.tensors().items()}
    assert set(saved) == {"exp_avg.w", "exp_avg.b", "exp_avg_sq.w", "exp_avg_sq.b"}
    second = {name: nn.Parameter(p.detach().clone()) for name, p in first.items()}
    again = Optimizer(second, config, total_steps=10)
    again.restore(saved, optimizer.n_steps)
    assert again.lr == optimizer.lr
    run(optimizer, first, range(4, 8))
    run(again, second, range(4, 8))
    for name, p in first.items():
        assert torch.equal(p, second[name])
