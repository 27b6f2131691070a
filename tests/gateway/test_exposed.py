"""S09: a gateway that others can reach takes the key that was chosen, and tells it nobody."""

import logging

import pytest
from gateway_support import USER, stage
from openai import AsyncOpenAI, AuthenticationError

from areal_agent.gateway.keys import ADMIN_KEY_ENV, given_admin_key

OWN = "k3y-of-many-different-chars"


async def test_with_a_key_of_ones_own_it_works_and_logs_no_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "openai"):  # the client's own, which log what they send
        logging.getLogger(name).setLevel(logging.WARNING)
    key = given_admin_key("0.0.0.0", None, {ADMIN_KEY_ENV: OWN})
    async with stage("hello", host="0.0.0.0", admin_key=key) as playing, playing.session() as one:
        url = f"{playing.gateway.url}/v1"
        async with AsyncOpenAI(api_key=one.key, base_url=url) as client:
            made = await client.chat.completions.create(model="m", messages=[USER])
            assert made.choices[0].message.content == "hello"
            for wrong in ("areal-admin-key", OWN):  # an admin key is no session's key either
                with pytest.raises(AuthenticationError) as caught:
                    await client.with_options(api_key=wrong).models.list()
                assert wrong not in str(caught.value)
            answers = {
                sent: await client._client.post(
                    f"{playing.gateway.url}/rl/start_session",
                    headers={"authorization": f"Bearer {sent}"},
                )
                for sent in ("areal-admin-key", one.key, OWN)
            }
    statuses = [answer.status_code for answer in answers.values()]
    assert statuses[:2] == [401, 401]
    assert statuses[2] not in (401, 403)
    for secret in (OWN, one.key, one.path_name):
        assert secret not in caplog.text
        assert not any(secret in answer.text for answer in answers.values())
