"""Which session a key or a path belongs to."""

import hashlib

from areal_agent.gateway.session import Session
from areal_agent.net.api_error import ApiError


class Sessions:
    """The sessions of one gateway, open ones and, for a while, sealed ones.

    They are looked up by a hash, so that the time a look-up takes tells nothing about keys.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, Session] = {}
        self._by_path: dict[bytes, Session] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_key)

    def add(self, session: Session) -> None:
        """Let requests reach a session."""
        self._by_key[_hash(session.key)] = session
        self._by_path[_hash(session.path_name)] = session

    def remove(self, session: Session) -> None:
        """Forget a session: its key opens nothing any more."""
        self._by_key.pop(_hash(session.key), None)
        self._by_path.pop(_hash(session.path_name), None)

    def by_key(self, key: str) -> Session:
        """Return the session that `key` opens.

        Raises:
            ApiError: 401, there is none.
        """
        return self._found(self._by_key.get(_hash(key)), "the API key")

    def by_path(self, name: str) -> Session:
        """Return the session that a URL's path names.

        Raises:
            ApiError: 401, there is none.
        """
        return self._found(self._by_path.get(_hash(name)), "the path")

    @staticmethod
    def _found(session: Session | None, what: str) -> Session:
        if session is None:
            raise ApiError(
                f"{what} belongs to no open session: use the client, or the base_url and api_key, "
                "that this episode was given, and only while it runs",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )
        return session


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
