"""Frames: tensors cross bit for bit, and a torn or foreign stream is refused."""

import asyncio
import io
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_agent.backends.frames import (
    Frame,
    FrameReader,
    encode,
    pack_batch,
    read_frame,
    unpack_batch,
)
from areal_agent.errors import TrainError
from areal_agent.trajectory import RolloutBatch, TrainBatch

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of random bits (NaNs of every kind among them), also empty, also a view."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if dtype == torch.bool:
        value = torch.randint(0, 2, shape, generator=generator).bool()
    else:
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.randint(0, 256, [*shape, size], generator=generator, dtype=torch.uint8)
        value = raw.view(dtype).reshape(shape)
    return value.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else value


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == torch.bool:
        return torch.equal(a, b)
    a, b = (x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
    return torch.equal(a, b)


frames = st.builds(
    Frame,
    st.dictionaries(st.text(), json_values, max_size=4),
    st.dictionaries(st.text(min_size=1, max_size=8), tensors(), max_size=4),
)


@given(st.lists(frames, max_size=3))
def test_frames_cross_unchanged(sent: list[Frame]) -> None:
    file = io.BytesIO(b"".join(encode(frame) for frame in sent))
    for frame in sent:
        got = read_frame(file)
        assert got is not None
        assert got.header == frame.header
        assert got.tensors.keys() == frame.tensors.keys() - {"__metadata__"}
        assert all(same_bits(got.tensors[name], frame.tensors[name]) for name in got.tensors)
    assert read_frame(file) is None


@given(frames, st.data())
def test_a_torn_frame_is_refused(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(TrainError, match="expected a frame"):
        read_frame(io.BytesIO(whole[:cut]))


def test_a_foreign_stream_is_refused() -> None:
    with pytest.raises(TrainError, match=r"expected a frame that starts with.*b'HTTP"):
        read_frame(io.BytesIO(b"HTTP/1.1 200 OK\r\n\r\n"))


async def test_a_cancelled_read_loses_nothing() -> None:
    stream = asyncio.StreamReader()
    reader = FrameReader(stream)
    data = encode(Frame({"id": 1}, {"x": torch.arange(5)})) + encode(Frame({"id": 2}))
    got: list[Frame] = []
    for byte in data:
        stream.feed_data(bytes([byte]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(reader.read())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        if not task.cancelled():
            got.append(task.result())
    assert [frame.header for frame in got] == [{"id": 1}, {"id": 2}]
    assert torch.equal(got[0].tensors["x"], torch.arange(5))


def make_batch() -> TrainBatch:
    shape = (2, 3)
    logprobs = torch.randn(shape)
    return TrainBatch(
        input_ids=torch.arange(6).reshape(shape),
        attention_mask=torch.ones(shape, dtype=torch.bool),
        loss_mask=torch.tensor([[0, 1, 1], [0, 0, 1]], dtype=torch.bool),
        logprobs=logprobs,
        versions=torch.zeros(shape, dtype=torch.int32),
        rewards=torch.tensor([1.0, 0.0]),
        group_ids=torch.tensor([0, 0]),
        episode_ids=torch.tensor([0, 1]),
        truncated=torch.tensor([False, True]),
        temperatures=torch.full(shape, 0.6),
        advantages=torch.full(shape, torch.nan),
        prox_logprobs=logprobs,  # the same memory, as when nothing was recomputed
    )


def test_batches_cross_with_all_their_fields() -> None:
    batch = make_batch()
    values, parts = pack_batch(batch)
    frame = read_frame(io.BytesIO(encode(Frame({"batch": values}, parts))))
    assert frame is not None
    got = unpack_batch(RolloutBatch, frame.header["batch"], frame.tensors)
    assert type(got) is TrainBatch
    for item in fields(batch):
        assert same_bits(getattr(got, item.name), getattr(batch, item.name)), item.name


def test_a_rollout_batch_is_no_train_batch() -> None:
    values, parts = pack_batch(make_batch())
    values["kind"] = "RolloutBatch"
    with pytest.raises(TrainError, match="expected a TrainBatch, got 'RolloutBatch'"):
        unpack_batch(TrainBatch, values, parts)
