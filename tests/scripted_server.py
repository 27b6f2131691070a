"""A server that speaks the embedded server's protocol without a model.

It samples with a `FakeEngine`; single answers of any route can be scripted before it does.
"""

import asyncio
import socket
from collections import deque
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from areal_agent.config.generation import GenerationHyperparameters
from areal_agent.errors import EngineFault, InferenceError
from areal_agent.net.serve import base_url
from areal_agent.testing.fakes import FakeEngine
from areal_agent.types import ModelRequest

KEY = "control-key-of-the-tests"


async def until(condition):
    """Wait for something that happens on the other side of a socket."""
    while not condition():  # noqa: ASYNC110 - no event crosses a socket
        await asyncio.sleep(0.005)


def as_json(value, status=200):
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


def error(status, message):
    return as_json(
        {"error": {"message": message, "type": "x", "param": None, "code": None}}, status
    )


def completion(ids, reason="stop", *, version=0):
    """An answer with these tokens."""
    return {
        "choices": [
            {
                "text": "",
                "finish_reason": reason,
                "token_ids": list(ids),
                "logprobs": {"tokens": [str(i) for i in ids], "token_logprobs": [-0.5] * len(ids)},
                "weight_versions": [version] * len(ids),
            }
        ]
    }


def sse(value):
    return b"data: " + orjson.dumps(value) + b"\n\n"


def event(ids, reason, *, logprobs=None, versions=None):
    """A server-sent event with these tokens."""
    answer = completion(ids, reason)
    choice = answer["choices"][0]
    choice["logprobs"]["token_logprobs"] = logprobs or [-0.5] * len(ids)
    choice["weight_versions"] = versions or [0] * len(ids)
    return sse(answer)


class ScriptedServer:
    """Routes, what was asked of them, and what they answer next."""

    def __init__(self, fake=None, *, instance_id="server-0"):
        self.fake = fake or FakeEngine()
        self.instance_id = instance_id
        self.url = ""
        self.asked = []
        """(path, body) of each request, in order."""
        self.next_answers = deque()
        """Answers to the next completions: JSON values or Responses."""
        self.control_answers = {}
        """Path to the answer that stands in for the usual one."""
        self.fault = None
        self.alive = asyncio.Event()
        """Cleared, the server answers nothing more, and hangs up on nobody."""
        self.alive.set()
        routes = [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/health", self.health),
            *(
                Route(f"/control/{name}", self.control, methods=["GET", "POST"])
                for name in ("pause", "resume", "update_weights", "version", "stats", "score")
            ),
        ]
        self.app = Starlette(routes=routes)

    def bodies(self, path="/v1/completions"):
        return [body for asked, body in self.asked if asked == path]

    async def completions(self, request):
        body = orjson.loads(await request.body())
        self.asked.append(("/v1/completions", body))
        await self.alive.wait()
        if self.next_answers:
            answer = self.next_answers.popleft()
            return answer if isinstance(answer, Response) else as_json(answer)
        if body.get("stream"):
            return StreamingResponse(self.events(body), media_type="text/event-stream")
        return await self.sample(request, body)

    async def events(self, body):
        """Each token as an event, then the reason, then the end."""
        gconfig = GenerationHyperparameters(max_new_tokens=body["max_tokens"])
        queue = asyncio.Queue()

        def tell(ids, logprobs, versions):
            queue.put_nowait(event(ids, None, logprobs=logprobs, versions=versions))

        async def sample():
            asked = ModelRequest(input_ids=body["prompt"], gconfig=gconfig)
            try:
                reply = await self.fake.agenerate(asked, on_tokens=tell)
            except InferenceError as caught:
                queue.put_nowait(sse({"error": {"message": str(caught)}}))
            else:
                queue.put_nowait(event([], reply.stop_reason))
            queue.put_nowait(None)

        async with asyncio.TaskGroup() as group:
            work = group.create_task(sample())
            try:
                while (line := await queue.get()) is not None:
                    yield line
                yield b"data: [DONE]\n\n"
            finally:
                work.cancel()

    async def sample(self, request, body):
        gconfig = GenerationHyperparameters(max_new_tokens=body["max_tokens"])
        asked = ModelRequest(input_ids=body["prompt"], gconfig=gconfig)
        async with asyncio.TaskGroup() as group:
            work = group.create_task(self.outcome(asked))
            watch = group.create_task(self.until_gone(request, work))
            await asyncio.wait([work])
            watch.cancel()
        reply = None if work.cancelled() else work.result()
        if reply is None or isinstance(reply, InferenceError):
            return error(500, str(reply))
        answer = completion(reply.output_tokens, reply.stop_reason)
        answer["choices"][0]["logprobs"]["token_logprobs"] = list(reply.output_logprobs)
        answer["choices"][0]["weight_versions"] = list(reply.output_versions)
        return as_json(answer)

    async def outcome(self, asked):
        try:
            return await self.fake.agenerate(asked)
        except InferenceError as caught:
            if isinstance(caught, EngineFault):
                self.fault = str(caught)
            return caught

    async def until_gone(self, request, work):
        while not await request.is_disconnected():  # noqa: ASYNC110 - starlette has no event for it
            await asyncio.sleep(0.01)
        work.cancel()

    async def health(self, request):
        await self.alive.wait()
        status = "ok" if self.fault is None else "fault"
        return as_json(
            {
                "status": status,
                "reason": self.fault,
                "version": self.fake.version,
                "instance_id": self.instance_id,
                "model": "fake",
            },
            200 if self.fault is None else 503,
        )

    async def control(self, request):
        path = request.url.path
        content = await request.body()
        body = orjson.loads(content) if content else {}
        self.asked.append((path, body))
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return error(403, "the key is not the one of this server")
        if path in self.control_answers:
            answer = self.control_answers[path]
            return answer if isinstance(answer, Response) else await answer(request)
        return await getattr(self, path.rsplit("/", 1)[1])(body)

    async def pause(self, body):
        self.fake.hold()
        return as_json({"paused": True})

    async def resume(self, body):
        self.fake.release()
        return as_json({"paused": False})

    async def update_weights(self, body):
        if body["version"] < self.fake.version and not body.get("allow_older"):
            return error(409, f"expected version {self.fake.version} or later")
        try:
            await self.fake.update_weights(Path(body["path"]), body["version"])
        except InferenceError as caught:
            return error(400, str(caught))
        return as_json({"version": self.fake.version})

    async def version(self, body):
        return as_json({"version": self.fake.version})

    async def stats(self, body):
        return as_json({"running": self.fake.running})

    async def score(self, body):
        scores = await self.fake.score(body["rows"], temperature=body["temperature"])
        return as_json({"logprobs": scores.logprobs, "version": scores.version})


@asynccontextmanager
async def serving(app, *, host="127.0.0.1", keep_alive_seconds=600):
    """Serve `app` on a free port of this process; yields its URL."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=512)
    config = uvicorn.Config(
        app,
        log_level="critical",
        lifespan="off",
        ws="none",
        timeout_keep_alive=keep_alive_seconds,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started)
            try:
                yield base_url(host, listener.getsockname()[1])
            finally:
                server.should_exit = True


@asynccontextmanager
async def scripted(fake=None, **kwargs):
    """A running `ScriptedServer`."""
    names = {"instance_id": kwargs.pop("instance_id")} if "instance_id" in kwargs else {}
    server = ScriptedServer(fake, **names)
    async with serving(server.app, **kwargs) as url:
        server.url = url
        yield server
