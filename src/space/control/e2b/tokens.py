"""What opens a sandbox to whoever has no API key: its access token (in-sandbox API), its traffic token (ports), signatures (files).

Each is an HMAC of our sandbox id under a secret that control made once and keeps in its database, so none is stored, a restart or a
suspended sandbox keeps its own, and a fork, which has another id, has others.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, insert, select

from space.control.store.schema import control_secrets
from space.control.store.store import Store
from space.model.errors import Unauthenticated

_NAME: Final = "e2b"
_EXPIRY = re.compile(r"[0-9]{1,12}\Z")


class Tokens:
    """All of them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "Tokens()"

    @classmethod
    async def load(cls, store: Store) -> Tokens:
        """With the secret of this installation, which is on the disk when this returns."""
        fresh = secrets.token_bytes(32)
        return cls(await store.write(lambda connection: _kept(connection, fresh), durable=True))

    def envd(self, sandbox: str) -> str:
        """What `X-Access-Token` has to say for a sandbox of ours."""
        return self._of("envd:", sandbox)

    def traffic(self, sandbox: str) -> str:
        """What `E2B-Traffic-Access-Token` has to say, where ports are not public."""
        return self._of("traffic:", sandbox)

    def opens_envd(self, sandbox: str, given: str) -> bool:
        """Whether it is the access token."""
        return _same(self.envd(sandbox), given)

    def opens_traffic(self, sandbox: str, given: str) -> bool:
        """Whether it is the traffic token."""
        return _same(self.traffic(sandbox), given)

    def check_signature(self, sandbox: str, method: str, query: Mapping[str, str], *, now: float | None = None) -> None:
        """Unauthenticated unless the query of a `/files` request is signed for this sandbox, and in time. `path` and `username` are signed
        as they were given.
        """
        given = query.get("signature")
        if given is None:
            raise Unauthenticated("missing signature query parameter", hint="or send X-Access-Token")
        expiry = query.get("signature_expiration")
        operation = "read" if method in ("GET", "HEAD") else "write"
        said = f"{query.get('path', '')}:{operation}:{query.get('username', '')}:{self.envd(sandbox)}"
        if expiry is not None:
            said += f":{expiry}"
        digest = base64.b64encode(hashlib.sha256(said.encode("utf-8", "surrogateescape")).digest()).decode().rstrip("=")
        if not _same(f"v1_{digest}", given):
            raise Unauthenticated("invalid signature")
        if expiry is not None and (not _EXPIRY.match(expiry) or int(expiry) < (time.time() if now is None else now)):
            raise Unauthenticated("signature is already expired")

    def signed(self, said: str) -> str:
        """What proves that this server said it."""
        return self._of("said:", said)

    def _of(self, kind: str, sandbox: str) -> str:
        return hmac.new(self._secret, (kind + sandbox).encode(), hashlib.sha256).hexdigest()


def _same(right: str, given: str) -> bool:
    return hmac.compare_digest(right.encode(), given.encode("utf-8", "surrogateescape"))


def _kept(connection: Connection, fresh: bytes) -> bytes:
    found = connection.execute(select(control_secrets.c.value).where(control_secrets.c.name == _NAME)).scalar_one_or_none()
    if found is None:
        connection.execute(insert(control_secrets).values(name=_NAME, value=fresh))
        return fresh
    return bytes(found)
