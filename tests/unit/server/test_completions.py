"""`/v1/completions` and what is refused, over a real socket."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError
from server_support import Served, served, until
from tiny_models import VOCAB, byte_tokenizer, make_model, reference_logprobs

PROMPT = [10, 20, 30, 40, 50]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def server(folder: Path) -> AsyncGenerator[Served]:
    async with served(folder) as server:
        yield server


async def test_ids_in_ids_out(server: Served, folder: Path) -> None:
    answer = await server.complete(
        model="tiny",
        prompt=PROMPT,
        max_tokens=20,
        temperature=0.6,
        logprobs=0,
        return_token_ids=True,
        return_weight_versions=True,
        ignore_eos=True,
    )
    choice = answer["choices"][0]
    ids = choice["token_ids"]
    assert choice["prompt_token_ids"] == PROMPT
    assert len(ids) == 20
    assert choice["weight_versions"] == [0] * 20
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(
        reference_logprobs(folder, PROMPT + ids, 0.6)[5:], abs=1e-4
    )
    tokenizer = byte_tokenizer()
    assert choice["logprobs"]["tokens"] == [tokenizer.decode([i]) for i in ids]
    assert choice["text"] == tokenizer.decode(ids, skip_special_tokens=True)
    assert answer["logprobs_convention"] == "full_softmax_at_sampling_temperature"
    assert answer["usage"]["total_tokens"] == 25


async def test_what_was_not_asked_for_is_not_sent(server: Served) -> None:
    choice = (await server.complete(prompt="hello", max_tokens=3))["choices"][0]
    assert set(choice) == {"index", "text", "finish_reason", "logprobs"}
    assert choice["logprobs"] is None


async def test_choices_differ_and_a_seed_repeats_them(server: Served) -> None:
    body: dict[str, Any] = {
        "prompt": PROMPT,
        "max_tokens": 12,
        "n": 8,
        "seed": 1,
        "return_token_ids": True,
    }
    first, again = [await server.complete(**body) for _ in range(2)]
    other = await server.complete(**{**body, "seed": 2})
    ids = [[tuple(c["token_ids"]) for c in a["choices"]] for a in (first, again, other)]
    assert len(set(ids[0])) == 8
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
    assert first["usage"]["completion_tokens"] == sum(len(i) for i in ids[0])


async def test_without_a_seed_replies_differ(server: Served) -> None:
    texts = [
        (await server.complete(prompt=PROMPT, max_tokens=12))["choices"][0]["text"]
        for _ in range(2)
    ]
    assert texts[0] != texts[1]


async def test_the_openai_client_completes_and_streams(server: Served) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        body: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": 30, "seed": 4}
        whole = await client.completions.create(**body)
        stream = await client.completions.create(
            **body,
            stream=True,
            logprobs=0,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True, "return_weight_versions": True},
        )
        chunks = [chunk async for chunk in stream]
        assert [m.id for m in (await client.models.list()).data] == ["tiny"]
    pieces = [c.choices[0] for c in chunks if c.choices]
    assert "".join(c.text for c in pieces) == whole.choices[0].text
    assert pieces[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    extras = [c.model_extra or {} for c in pieces]
    assert extras[0]["prompt_token_ids"] == byte_tokenizer().encode("abc")
    ids = [i for e in extras for i in e["token_ids"]]
    assert len(ids) == whole.usage.completion_tokens
    assert [v for e in extras for v in e["weight_versions"]] == [0] * len(ids)


async def test_a_stream_may_come_in_few_parts(server: Served) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 9, "seed": 4, "logprobs": 0}
    asked |= {"ignore_eos": True, "return_token_ids": True, "return_weight_versions": True}
    whole = (await server.complete(**asked))["choices"][0]
    asked |= {"stream": True, "stream_interval": 600}
    text = (await server.client.post("/v1/completions", json=asked)).text
    *events, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert end == "[DONE]"
    tokens, last = [orjson.loads(line)["choices"][0] for line in events]
    for name in ("token_ids", "weight_versions", "logprobs", "prompt_token_ids"):
        assert tokens[name] == whole[name]
    assert tokens["text"] + last["text"] == whole["text"]
    assert (tokens["finish_reason"], last["finish_reason"]) == (None, "length")


async def test_several_choices_stream_side_by_side(server: Served) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 9, "seed": 4, "n": 3}
    whole = await server.complete(**body)
    texts = ["", "", ""]
    async with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as s:
        lines = [line async for line in s.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        for choice in orjson.loads(line.removeprefix("data: "))["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [c["text"] for c in whole["choices"]]


async def test_stop_strings_are_cut_off_also_in_streams(server: Served) -> None:
    free = await server.complete(
        prompt=PROMPT, max_tokens=60, seed=3, ignore_eos=True, return_token_ids=True
    )
    text = free["choices"][0]["text"]
    stop = next(text[i : i + 2] for i in range(8, len(text)) if text[i : i + 2].isprintable())
    body: dict[str, Any] = {
        "prompt": PROMPT,
        "max_tokens": 60,
        "seed": 3,
        "ignore_eos": True,
        "stop": ["zzzz", stop],
    }
    choice = (await server.complete(**body, return_token_ids=True))["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == text[: text.index(stop)]
    sampled = free["choices"][0]["token_ids"][: len(choice["token_ids"])]
    assert choice["token_ids"] == sampled  # up to and including the stop string
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=60,
            seed=3,
            stop=["zzzz", stop],
            stream=True,
            extra_body={"ignore_eos": True},
        )
        assert "".join([c.choices[0].text async for c in stream]) == choice["text"]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no prompt": ({}, "prompt", "got nothing"),
    "empty prompt": ({"prompt": []}, "prompt", "at least one token"),
    "unknown id": ({"prompt": [1, VOCAB]}, "prompt", f"from 0 to {VOCAB - 1}, got {VOCAB}"),
    "negative id": ({"prompt": [-1]}, "prompt", "got -1"),
    "nested ids": ({"prompt": [[1, 2]]}, "prompt", "list of token ids"),
    "true is no id": ({"prompt": [True]}, "prompt", "list of token ids"),
    "too long": ({"prompt": [5] * 256}, "prompt", "at most 255 tokens"),
    "no tokens": ({"prompt": "a", "max_tokens": 0}, "max_tokens", "from 1"),
    "text for a number": ({"prompt": "a", "max_tokens": "5"}, "max_tokens", "an integer"),
    "hot": ({"prompt": "a", "temperature": -1}, "temperature", "from 0.0"),
    "nearly zero": ({"prompt": "a", "temperature": 1e-9}, "temperature", "at least 0.001"),
    "top_p 0": ({"prompt": "a", "top_p": 0}, "top_p", "above 0"),
    "top_p 2": ({"prompt": "a", "top_p": 2}, "top_p", "from 0.0 to 1.0"),
    "no choice": ({"prompt": "a", "n": 0}, "n", "from 1"),
    "empty stop": ({"prompt": "a", "stop": ""}, "stop", "none empty"),
    "stop id": ({"prompt": "a", "stop_token_ids": [VOCAB]}, "stop_token_ids", "from 0"),
    "min over max": ({"prompt": "a", "min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most"),
    "negative seed": ({"prompt": "a", "seed": -1}, "seed", "from 0"),
    "many logprobs": ({"prompt": "a", "logprobs": 5}, "logprobs", "to 1, got 5"),
    "unknown": ({"prompt": "a", "guided_json": {}}, "guided_json", "not supported"),
    "echo": ({"prompt": "a", "echo": True}, "echo", "only supported value"),
    "usage": ({"prompt": "a", "stream_options": {}}, "stream_options", "only with stream"),
    "interval": ({"prompt": "a", "stream_interval": 1}, "stream_interval", "only with stream"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_bad_requests_are_refused_by_name(server: Served, name: str) -> None:
    body, param, message = REFUSED[name]
    answer = await server.client.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert server.engine.stats()["requests"] == 0
    assert (await server.client.get("/health")).status_code == 200


async def test_the_openai_client_understands_the_errors(server: Served) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        with pytest.raises(BadRequestError, match="from 0 to") as caught:
            await client.completions.create(model="tiny", prompt=[VOCAB + 5])
        assert caught.value.param == "prompt"


async def test_other_errors_have_the_same_shape(server: Served) -> None:
    client = server.client
    answers = [
        (404, await client.get("/nowhere")),
        (405, await client.get("/v1/completions")),
        (400, await client.post("/v1/completions", content=b"{")),
        (400, await client.post("/v1/completions", content=b"[1]")),
        (404, await client.post("/v1/completions", json={"prompt": "a", "model": "gpt-4"})),
    ]
    for status, answer in answers:
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_values_that_mean_nothing_are_accepted(server: Served) -> None:
    await server.complete(
        prompt="a",
        max_tokens=1,
        presence_penalty=0,
        logit_bias={},
        suffix=None,
        user=None,
        top_k=-1,
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot(folder: Path, stream: bool) -> None:
    """S23, at the server."""
    async with served(folder, max_running_requests=1) as server:
        server.model.hold_at = 3
        address = urlsplit(server.url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        body = orjson.dumps(
            {"prompt": PROMPT, "max_tokens": 240, "stream": stream, "ignore_eos": True}
        )
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        await server.model.wait_held()
        writer.close()
        await until(lambda: server.command_waits)
        server.model.go_on.set()
        await server.complete(prompt=PROMPT, max_tokens=2)
        assert server.model.steps < 10
        assert server.engine.stats()["requests"] == 2
