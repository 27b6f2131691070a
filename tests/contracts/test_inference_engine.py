"""What every inference engine promises: the fake, the client over HTTP, and the real server."""

import asyncio
import shutil
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from scripted_server import KEY, scripted, serving, until

from areal_agent.config.generation import GenerationHyperparameters
from areal_agent.errors import RequestError, WeightUpdateError
from areal_agent.inference.base import InferenceEngine
from areal_agent.inference.http import HttpInferenceEngine
from areal_agent.net.clients import HttpClients
from areal_agent.testing.fakes import FakeEngine, Reply
from areal_agent.types import ModelRequest


@dataclass
class Subject:
    """An engine under test, and what the test may see of its inside."""

    engine: InferenceEngine
    weights: Path
    """A folder that loads."""
    running: object
    """Returns how many requests are in flight."""


def long_reply(request):
    return Reply(ids=[3] * 64)


@asynccontextmanager
async def fake(folder):
    engine = FakeEngine(long_reply)
    engine.refuse_weights(Path("/no/such/folder"))
    async with engine:
        yield Subject(engine, folder, lambda: engine.running)


@asynccontextmanager
async def http(folder):
    inner = FakeEngine(long_reply)
    inner.refuse_weights(Path("/no/such/folder"))
    async with (
        scripted(inner) as server,
        HttpClients() as clients,
        HttpInferenceEngine(
            [server.url], clients=clients, model="fake", control_key=KEY, weights=folder
        ) as engine,
    ):
        yield Subject(engine, folder, lambda: inner.running)


@asynccontextmanager
async def embedded(folder, loaded):
    from areal_agent.inference.embedded import ServeSettings, make_engine, make_state
    from areal_agent.inference.server.app import make_app

    settings = ServeSettings(model=folder, instance_id="contract")
    async with make_engine(settings, loaded) as inner:
        state = make_state(settings, loaded, inner, control_key=KEY, api_key=None)
        async with (
            serving(make_app(state)) as url,
            HttpClients() as clients,
            HttpInferenceEngine(
                [url],
                clients=clients,
                model=state.model,
                control_key=KEY,
                weights=folder,
                instance_ids=["contract"],
            ) as engine,
        ):
            yield Subject(engine, folder, lambda: inner.stats()["running"])


@pytest.fixture(scope="session")
def served_model(tiny_model, tmp_path_factory):
    """The tiny model with a tokenizer of 64 words, as the server wants it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_model, folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0").save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="session")
def loaded_model(served_model):
    from areal_agent.inference.engine.load import load_model

    return load_model(served_model, dtype="float32", device="cpu")


@pytest.fixture(params=["fake", "http", "embedded"])
async def subject(request, served_model):
    if request.param == "embedded":
        opening = embedded(served_model, request.getfixturevalue("loaded_model"))
    else:
        opening = {"fake": fake, "http": http}[request.param](served_model)
    async with opening as opened:
        yield opened


def ask(prompt=(4, 5, 6), **gconfig):
    gconfig.setdefault("max_new_tokens", 8)
    gconfig.setdefault("ignore_eos", True)
    return ModelRequest(input_ids=list(prompt), gconfig=GenerationHyperparameters(**gconfig))


async def test_a_reply_lines_up(subject):
    reply = await subject.engine.agenerate(ask())
    assert list(reply.input_tokens) == [4, 5, 6]
    assert len(reply.output_tokens) == 8
    assert all(0 <= token < 64 for token in reply.output_tokens)
    assert all(logprob <= 0 for logprob in reply.output_logprobs)
    assert set(reply.output_versions) == {subject.engine.version}
    assert reply.stop_reason == "length"


@pytest.mark.parametrize(
    ("gconfig", "expected"),
    [({"max_tokens": 9}, 6), ({"max_tokens": 9, "max_new_tokens": 4}, 4), ({"max_tokens": 4}, 1)],
)
async def test_the_budget_is_the_smaller_of_both(subject, gconfig, expected):
    reply = await subject.engine.agenerate(ask(**gconfig))
    assert len(reply.output_tokens) == expected


@pytest.mark.parametrize("max_tokens", [1, 3])
async def test_no_budget_is_refused(subject, max_tokens):
    with pytest.raises(RequestError, match="no budget"):
        await subject.engine.agenerate(ask(max_tokens=max_tokens))


async def test_one_sample_a_request(subject):
    with pytest.raises(ValueError, match="n_samples"):
        await subject.engine.agenerate(ask(n_samples=4))


async def test_many_at_once(subject):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(subject.engine.agenerate(ask([i + 2]))) for i in range(40)]
    assert [task.result().input_tokens for task in tasks] == [[i + 2] for i in range(40)]


async def test_new_weights_make_the_next_tokens(subject):
    before = subject.engine.version
    await subject.engine.update_weights(subject.weights, before + 1)
    assert subject.engine.version == before + 1
    reply = await subject.engine.agenerate(ask())
    assert set(reply.output_versions) == {before + 1}


async def test_weights_that_do_not_load_leave_the_old_ones_serving(subject):
    """S21."""
    before = subject.engine.version
    with pytest.raises(WeightUpdateError):
        await subject.engine.update_weights(Path("/no/such/folder"), before + 1)
    assert subject.engine.version == before
    async with asyncio.timeout(5):
        reply = await subject.engine.agenerate(ask())
    assert set(reply.output_versions) == {before}


async def test_an_update_midway_does_not_fail_a_request(subject):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(subject.engine.agenerate(ask(max_new_tokens=60)))
        await until(lambda: task.done() or subject.running())
        await subject.engine.update_weights(subject.weights, subject.engine.version + 1)
    versions = list(task.result().output_versions)
    assert len(versions) == 60
    assert versions == sorted(versions)


async def test_a_pause_holds_and_ends_on_an_error(subject):
    async with asyncio.TaskGroup() as group:
        with suppress(KeyError):
            async with subject.engine.paused():
                task = group.create_task(subject.engine.agenerate(ask()))
                await asyncio.sleep(0.05)
                assert not task.done()
                raise KeyError("in the body")
    assert len(task.result().output_tokens) == 8


async def test_cancelling_the_caller_cancels_the_work(subject):
    async with subject.engine.paused():
        pass
    async with asyncio.TaskGroup() as group:
        task = group.create_task(subject.engine.agenerate(ask(max_new_tokens=60)))
        await until(lambda: task.done() or subject.running())
        task.cancel()
    async with asyncio.timeout(5):
        await until(lambda: not subject.running())


async def test_score(subject):
    rows = [[4, 5, 6, 7], [9, 8]]
    answer = await subject.engine.score(rows, temperature=0.7)
    assert answer.version == subject.engine.version
    scores = answer.logprobs
    assert [len(row) for row in scores] == [4, 2]
    assert scores[0][0] == scores[1][0] == 0.0
    assert all(value < 0 for row in scores for value in row[1:])


async def test_scores_agree_with_sampling(subject):
    reply = await subject.engine.agenerate(ask(temperature=1.0, seed=3))
    row = [*reply.input_tokens, *reply.output_tokens]
    (scores,) = (await subject.engine.score([row])).logprobs
    assert scores[3:] == pytest.approx(list(reply.output_logprobs), abs=1e-4)


@pytest.mark.parametrize(
    ("gconfig", "temperature"), [({"temperature": 0.5}, 0.5), ({"greedy": True}, 0.0)]
)
async def test_a_reply_says_at_which_temperature_it_was_sampled(subject, gconfig, temperature):
    reply = await subject.engine.agenerate(ask(**gconfig))
    assert reply.temperature == temperature


async def test_a_seed_repeats(subject):
    first = await subject.engine.agenerate(ask(seed=11))
    again = await subject.engine.agenerate(ask(seed=11))
    assert list(first.output_tokens) == list(again.output_tokens)


async def test_tokens_are_told_as_they_come(subject):
    told = []
    tell = lambda *part: told.append([list(values) for values in part])  # noqa: E731
    reply = await subject.engine.agenerate(ask(seed=11), on_tokens=tell)
    ids, logprobs, versions = ([v for part in told for v in part[i]] for i in range(3))
    assert ids == list(reply.output_tokens)
    assert logprobs == list(reply.output_logprobs)
    assert versions == list(reply.output_versions)
    assert len(told) > 1
    plain = await subject.engine.agenerate(ask(seed=11))
    assert list(plain.output_tokens) == ids
    assert list(plain.output_logprobs) == pytest.approx(logprobs, abs=1e-5)
    assert plain.stop_reason == reply.stop_reason
