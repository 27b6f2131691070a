"""The one place where HTTP clients are opened."""

import httpx
class HttpClients:
    """placeholder"""
    def get(self, purpose: str) -> httpx.AsyncClient: ...
