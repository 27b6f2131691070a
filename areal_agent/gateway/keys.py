"""The key of the admin routes: who may start sessions from outside of the run."""

import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request

from areal_agent.errors import ConfigError
from areal_agent.net.api_error import ApiError
from areal_agent.net.serve import LOOPBACK

ADMIN_KEY_ENV = "AREAL_AGENT_ADMIN_KEY"
"""Holds the key, where the user has chosen one."""

_MIN_CHARS = 20
_MIN_DISTINCT = 8


class AdminKey:
    """One key. It is shown nowhere; `place` says where it can be read."""

    def __init__(self, value: str = "", place: str = "") -> None:
        """Take the key that the user chose; without one, a random one is made."""
        self._value = value or f"sk-admin-{secrets.token_urlsafe(32)}"
        self.place = place
        """Where the key can be read; empty: nowhere yet."""

    def check(self, request: Request) -> None:
        """Let a request pass that shows the key.

        Raises:
            ApiError: 401, it does not.
        """
        if not self.is_sent_by(request):
            raise ApiError(
                "the admin key is missing or wrong: send it as 'Authorization: Bearer KEY'; the "
                "run says at its start where it can be read",
                status=401,
                type="authentication_error",
                code="invalid_admin_key",
            )

    def is_sent_by(self, request: Request) -> bool:
        """Tell, in a time that does not depend on it, whether a request shows the key."""
        sent = sent_key(request).encode("utf-8", "surrogatepass")
        return hmac.compare_digest(sent, self._value.encode())

    def write(self, path: Path) -> None:
        """Put a key that was made at random where only this user can read it."""
        if not self.place:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self._value + "\n")
            self.place = str(path)


def given_admin_key(host: str, file: Path | None, environment: Mapping[str, str]) -> AdminKey:
    """Return the key from the environment or from `file`, or a random one on loopback.

    Raises:
        ConfigError: the file has none, or other machines can reach `host` and there is no key, or
            one that can be guessed.
    """
    value, place = environment.get(ADMIN_KEY_ENV, "").strip(), f"${ADMIN_KEY_ENV}"
    if not value and file is not None:
        place = str(file)
        try:
            value = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"gateway.admin_key_file: cannot read {place!r}: {error}") from error
        if not value:
            raise ConfigError(f"gateway.admin_key_file: {place!r} is empty: write the key into it")
    if host not in LOOPBACK and (len(value) < _MIN_CHARS or len(set(value)) < _MIN_DISTINCT):
        what = f"the admin key in {place} is easily guessed" if value else "there is no admin key"
        raise ConfigError(
            f"gateway.host {host!r} can be reached from other machines, but {what}: put at least "
            f"{_MIN_CHARS} random characters into {ADMIN_KEY_ENV} or into the file "
            'gateway.admin_key_file (python -c "import secrets; '
            'print(secrets.token_urlsafe(32))"), or set gateway.host to 127.0.0.1'
        )
    return AdminKey(value, place) if value else AdminKey()


def sent_key(request: Request) -> str:
    """The key as OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key", "")
