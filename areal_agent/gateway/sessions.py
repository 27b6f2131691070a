"""Which session a key or a path belongs to."""

import hashlib

from areal_agent.gateway.session import Session, SessionSealed
from areal_agent.net.api_error import ApiError

_REMEMBERED = 16_384
"""So many keys of sessions that have ended are told from keys that never were."""


class Sessions:
    """The open sessions of one gateway; of those that have ended, hashes for a while.

    They are looked up by a hash, so that the time a look-up takes tells nothing about keys.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, Session] = {}
        self._by_path: dict[bytes, Session] = {}
        self._ended: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_key)

    def add(self, session: Session) -> None:
        """Let requests reach a session."""
        self._by_key[_hash(session.key)] = session
        self._by_path[_hash(session.path_name)] = session

    def remove(self, session: Session) -> None:
        """Forget a session: its key opens nothing any more."""
        for found, secret in ((self._by_key, session.key), (self._by_path, session.path_name)):
            hashed = _hash(secret)
            found.pop(hashed, None)
            self._ended[hashed] = None
        while len(self._ended) > 2 * _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def by_key(self, key: str) -> Session:
        """Return the session that `key` opens.

        Raises:
            ApiError: 401, there is none; 410, it has ended.
        """
        return self._found(self._by_key, key, "the API key")

    def by_path(self, name: str) -> Session:
        """Return the session that a URL's path names.

        Raises:
            ApiError: 401, there is none; 410, it has ended.
        """
        return self._found(self._by_path, name, "the path")

    def _found(self, there: dict[bytes, Session], secret: str, what: str) -> Session:
        hashed = _hash(secret)
        if hashed in self._ended:
            raise SessionSealed
        session = there.get(hashed)
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
