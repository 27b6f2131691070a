"""What the gateway's tests share; one of them runs the others with another SDK, so say which."""

import openai
import pytest
from gateway_support import Stage


def pytest_report_header() -> str:
    return f"openai {openai.__version__}"


@pytest.fixture(params=["asgi", "socket"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: with clients of this process, and with clients over a socket."""
    monkeypatch.setattr(Stage, "inside", request.param == "asgi")
