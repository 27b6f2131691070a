"""Allocation strings: what they mean, where they break, and that they read back."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from areal_agent.config import allocation as module
from areal_agent.config.allocation import (
    AllocationPlan,
    ModelAllocation,
    parse_allocations,
    require_installed,
)
from areal_agent.config.parallelism import BACKENDS, ParallelStrategy
from areal_agent.errors import AllocationError, ConfigError, NotInstalledError


@pytest.mark.parametrize(
    ("text", "world", "sizes", "written"),
    [
        ("fsdp:d4", 4, (4, 1, 1, 1, 1, 1, 4), "fsdp:d4"),
        ("fsdp:d2t2c2", 8, (2, 1, 2, 2, 1, 1, 2), "fsdp:d2t2c2"),
        ("fsdp:p1d2e1", 2, (2, 1, 1, 1, 1, 1, 2), "fsdp:d2"),
        ("sglang:t4d2", 8, (2, 1, 4, 1, 1, 1, 2), "sglang:d2t4"),
        ("vllm:d2p2t2", 8, (2, 2, 2, 1, 1, 1, 2), "vllm:d2p2t2"),
        ("sglang[rollout]:d4", 4, (4, 1, 1, 1, 1, 1, 4), "sglang[rollout]:d4"),
        (" sglang [ r_1 ] : d 4 t 2 ", 8, (4, 1, 2, 1, 1, 1, 4), "sglang[r_1]:d4t2"),
        ("megatron:d4p2t2c2e2", 32, (4, 2, 2, 2, 2, 1, 8), "megatron:d4p2t2c2e2"),
        ("archon:d8e4", 8, (8, 1, 1, 1, 4, 1, 2), "archon:d8e4"),
        (
            "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)",
            32,
            (4, 2, 2, 2, 2, 4, 2),
            "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)",
        ),
        (
            "megatron[actor]:(attn:d4p2t2c2|ffn:t4e2)",
            32,
            (4, 2, 2, 2, 2, 4, 2),
            "megatron[actor]:(attn:d4p2t2c2|ffn:d2p2t4e2)",
        ),
        ("megatron:(attn:d1p12t4|ffn:d1p12e4)", 48, (1, 12, 4, 1, 4, 1, 1), "megatron:p12t4e4"),
        ("megatron:(attn:d2t2|ffn:t4)", 4, (2, 1, 2, 1, 1, 4, 1), "megatron:(attn:d2t2|ffn:t4)"),
        ("embedded:d3", 3, (3, 1, 1, 1, 1, 1, 3), "embedded:d3"),
        ("local:d1", 1, (1, 1, 1, 1, 1, 1, 1), "local:d1"),
    ],
)
def test_single(text: str, world: int, sizes: tuple[int, ...], written: str) -> None:
    allocation = ModelAllocation.from_str(text)
    parallel = allocation.parallel

    assert allocation.world_size == parallel.world_size == world
    assert sizes == (
        parallel.dp_size,
        parallel.pp_size,
        parallel.tp_size,
        parallel.cp_size,
        parallel.ep_size,
        parallel.etp_size,
        parallel.edp_size,
    )
    assert str(allocation) == written
    assert ModelAllocation.from_str(written) == allocation


@pytest.mark.parametrize(
    ("text", "groups", "world"),
    [
        ("sglang:d2+fsdp:d4", [[None], [None]], 6),
        ("sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d2t2", [["r"], ["a", "c"]], 6),
        ("vllm[r]:t2|fsdp[a]:d2", [["r", "a"]], 2),
        ("fsdp[a]:d1+fsdp[b]:d1+vllm[c]:d1|vllm[d]:d1", [["a"], ["b"], ["c", "d"]], 3),
        ("megatron[a]:(attn:d2|ffn:e2)|vllm[r]:d2", [["a", "r"]], 2),
        ("fsdp:d4", [[None]], 4),
    ],
)
def test_several(text: str, groups: list[list[str | None]], world: int) -> None:
    plan = parse_allocations(text)

    assert [[model.name for model in group] for group in plan.groups] == groups
    assert plan.world_size == world
    assert parse_allocations(str(plan)) == plan


def test_a_plan_finds_its_models_by_name() -> None:
    plan = parse_allocations("sglang[r]:d2+fsdp[a]:d4")

    assert plan["a"].backend == "fsdp"
    with pytest.raises(KeyError, match=r"expected one of \['r', 'a'\], got 'x'"):
        plan["x"]


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("", 0, "got nothing"),
        ("   ", 3, "got nothing"),
        ("d4t2", 0, "sizes without a backend"),
        ("sglang:d2+d4", 10, "sizes without a backend"),
        ("[actor]:d4", 0, "expected a backend before '['"),
        ("(attn:d4|ffn:e2)", 0, "expected a backend before '('"),
        ("attn:d4|ffn:e2", 0, "for instance 'megatron:(attn:d4|ffn:d2e2)'"),
        ("fspd:d4", 0, "did you mean 'fsdp'?"),
        ("fsdp2:d4", 0, "got 'fsdp2'; did you mean 'fsdp'?"),
        ("FSDP:d4", 0, "expected lower case, 'fsdp'"),
        ("fsdp:D4", 5, "expected lower case, 'd'"),
        ("fsdp", 4, "expected ':' after 'fsdp'"),
        ("fsdp(a):d4", 4, "a name stands in brackets"),
        ("fsdp:", 5, "expected sizes"),
        ("fsdp:d", 6, "expected a number after 'd'"),
        ("fsdp:d0", 6, "1 or more without leading zeros, got '0'"),
        ("fsdp:d04", 6, "without leading zeros, got '04'"),
        ("fsdp:d-4", 6, "expected a number after 'd'"),
        ("fsdp:x2", 5, "expected one of d (data), t (tensor), c (context)"),
        ("fsdp:d4d2", 7, "'d' (data parallel) is given twice"),
        ("fsdp:d1p2", 7, "fsdp has no pipeline parallelism: it knows d, t, c"),
        ("fsdp:d2e2", 7, "fsdp has no expert parallelism"),
        ("sglang:c2", 7, "sglang has no context parallelism: it knows d, p, t"),
        ("vllm:d2e2", 7, "vllm has no expert parallelism"),
        ("embedded:t2", 9, "embedded has no tensor parallelism: it knows d"),
        ("megatron:d2e4", 0, "multiple of 4 devices"),
        ("fsdp[]:d4", 5, "expected a name"),
        ("fsdp[1a]:d4", 5, "expected a name"),
        ("fsdp[a:d4", 6, "expected ']' after the name"),
        ("fsdp:d4)", 7, "expected '+', '|' or the end, got ')'"),
        ("fsdp:d4+", 8, "got nothing"),
        ("fsdp:d4 x", 8, "expected one of d (data)"),
        ("megatron:attn:d4|ffn:e2", 9, "expected '(' before the parts"),
        ("megatron:(attn:d4|ffn:e2", 24, "expected ')'"),
        ("megatron:(attn:d4)", 17, "expected '|ffn:...'"),
        ("megatron:(ffn:d4|attn:d4)", 10, "expected 'attn:'"),
        ("megatron:(attn:d4|ffn:)", 22, "expected sizes"),
        ("megatron:(attn:d4e2|ffn:d4)", 17, "attn has no expert parallelism"),
        ("megatron:(attn:d4|ffn:c2)", 22, "ffn has no context parallelism"),
        ("fsdp:(attn:d4|ffn:d4)", 5, "fsdp does not cut experts"),
        ("megatron:(attn:d2p2|ffn:p1)", 20, "ffn has p1, but attn has p2"),
        ("megatron:(attn:d4|ffn:d2e4)", 18, "ffn takes 8 devices (d·p·t·e), attn takes 4"),
        ("megatron:(attn:d4|ffn:t3)", 18, "multiple of 3 devices"),
        ("sglang[a]:d2+fsdp[a]:d2", 13, "the name 'a' is given twice"),
        ("sglang[a]:d1+fsdp:d1+fsdp[c]:d1", 13, "with three models or more each needs a name"),
        ("sglang[a]:d2|fsdp:d2", 13, "models that share devices need names"),
        ("sglang[a]:d2|fsdp[b]:d4", 13, "need equally many: a has 2, b has 4"),
    ],
)
def test_errors_show_their_place(text: str, position: int, said: str) -> None:
    with pytest.raises(AllocationError) as caught:
        parse_allocations(text)

    error = caught.value
    assert said in str(error)
    assert (error.text, error.position) == (text, position)
    assert str(error).endswith(f"\n  {text}\n  {' ' * position}^")


@pytest.mark.parametrize(
    ("text", "position"),
    [("sglang:d2+fsdp:d4", 9), ("sglang[a]:d2|fsdp[b]:d2", 12),
     ("megatron[a]:(attn:d2|ffn:e2)|vllm[r]:d2", 28)],
)  # fmt: skip
def test_one_model_is_asked_for_and_several_are_given(text: str, position: int) -> None:
    with pytest.raises(AllocationError, match="expected a single allocation, got 2") as caught:
        ModelAllocation.from_str(text)

    assert caught.value.position == position


def test_a_name_from_outside_replaces_the_one_inside() -> None:
    assert ModelAllocation.from_str("fsdp[a]:d2", name="actor").name == "actor"
    assert ModelAllocation.from_str("fsdp[a]:d2").name == "a"


def test_only_what_exists_here_is_installed() -> None:
    require_installed(ModelAllocation.from_str("embedded:d4"), "rollout")
    require_installed(ModelAllocation.from_str("local:d1"), "actor")
    for text, role in [("vllm:d1", "rollout"), ("sglang:d1", "rollout"), ("fsdp:d2", "actor"),
                       ("megatron:d2", "actor"), ("archon:d2", "actor")]:  # fmt: skip
        with pytest.raises(NotInstalledError, match=f"{text.split(':')[0]!r} is not installed yet"):
            require_installed(ModelAllocation.from_str(text), role)


def test_a_backend_for_another_role() -> None:
    with pytest.raises(ConfigError, match="local is for actor") as caught:
        require_installed(ModelAllocation.from_str("local:d1"), "rollout")
    assert not isinstance(caught.value, NotInstalledError)


def test_the_old_name_says_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"ModelAllocation\.from_str"):
        module.AllocationMode  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        module.Nope  # noqa: B018


SIZES = st.integers(1, 12)


@st.composite
def allocations(draw: st.DrawFn, name: st.SearchStrategy[str | None]) -> ModelAllocation:
    backend = draw(st.sampled_from(list(BACKENDS.values())))
    words = {"d": "data", "p": "pipeline", "t": "tensor", "c": "context", "e": "expert"}
    sizes = {f"{words[letter]}_parallel_size": draw(SIZES) for letter in backend.dimensions}
    if "e" in backend.dimensions:
        sizes["expert_tensor_parallel_size"] = draw(SIZES)
    try:
        parallel = ParallelStrategy(**sizes)
    except ValueError:
        assume(False)
        raise
    return ModelAllocation(backend.name, draw(name), parallel)


@given(allocations(st.none() | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)))
def test_a_string_reads_back_as_what_it_was_made_from(allocation: ModelAllocation) -> None:
    assert ModelAllocation.from_str(str(allocation)) == allocation


@given(st.lists(st.lists(allocations(st.none()), min_size=1, max_size=1), min_size=1, max_size=4))
def test_plans_read_back(groups: list[list[ModelAllocation]]) -> None:
    named = tuple(
        tuple(
            ModelAllocation(one.backend, f"m{i}_{j}", one.parallel)
            for j in range(2)
            for one in group
        )
        for i, group in enumerate(groups)
    )
    plan = AllocationPlan(named)

    assert parse_allocations(str(plan)) == plan


@given(st.text(alphabet="fsdpmegatronvl[]()|+:123 attnffe", max_size=40))
def test_any_text_parses_or_fails_with_a_place(text: str) -> None:
    places: list[int] = []
    try:
        assert parse_allocations(str(plan := parse_allocations(text))) == plan
    except AllocationError as error:
        places.append(error.position)
    assert all(0 <= place <= len(text) for place in places)
