"""Access tokens of OAuth secrets: got from the minter when one is needed, kept in memory for as long as they are good.

    no token, or an old one -> one exchange, whoever else asks waits for it -> (the endpoint turned the refresh token: stored) -> token

A refresh token that the endpoint turned is on the disk before the access token that came with it is used: losing it would lose the secret.
An exchange that failed is not repeated for some seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlencode

import msgspec

from space.broker.secrets import Known, Secrets
from space.model.errors import Conflict, SpaceError, Unavailable
from space.model.secret import Secret
from space.rpc.minter_client import MinterSocket

log = logging.getLogger("space.broker")

_MARGIN = 30.0  # seconds before its end that a token is not used any more
_USUAL = 300.0  # seconds that one is used whose answer says nothing of its life
_MOST_LIFE = 86_400.0
_REST = 5.0  # seconds after a failure
_OK = 200
_BAD = 400


class _Answer(msgspec.Struct, frozen=True):
    access_token: str
    token_type: str = "bearer"  # noqa: S105 - a word of the standard
    expires_in: float | None = None
    refresh_token: str | None = None


class _Error(msgspec.Struct, frozen=True):
    error: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """value: for the slot. until: of the clock. version: of the secret that it was got with, or that its refresh token became."""

    value: Secret
    until: float
    version: int


class Minting:
    """Of every tenant. minter: the socket of now. clock: seconds that only go forward."""

    def __init__(
        self, secrets: Secrets, minter: Callable[[], MinterSocket | None], now: Callable[[], datetime], clock: Callable[[], float]
    ) -> None:
        self._secrets = secrets
        self._minter = minter
        self._now = now
        self._clock = clock
        self._tokens: dict[tuple[str, str], Token] = {}
        self._getting: dict[tuple[str, str], asyncio.Task[Token]] = {}
        self._failed: dict[tuple[str, str], tuple[float, str]] = {}

    async def token(self, known: Known) -> Token:
        """A good one. Unavailable: there is none to be had now. Cancelling a call does not end the exchange that others wait for."""
        key = (known.tenant, known.name)
        kept = self._tokens.get(key)
        if kept is not None and kept.version == known.version and self._clock() < kept.until:
            return kept
        rests, why = self._failed.get(key, (0.0, ""))
        if self._clock() < rests:
            raise Unavailable(why)
        getting = self._getting.get(key)
        if getting is None:
            getting = self._getting[key] = asyncio.get_running_loop().create_task(self._get(key), name=f"token of {known.name}")
            getting.add_done_callback(lambda done: self._got(key, done))
        return await asyncio.shield(getting)

    def forget(self, tenant: str, name: str) -> None:
        """The secret is another one, or gone."""
        self._tokens.pop((tenant, name), None)
        self._failed.pop((tenant, name), None)

    def _got(self, key: tuple[str, str], done: asyncio.Task[Token]) -> None:
        if self._getting.get(key) is done:
            del self._getting[key]
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._tokens[key] = done.result()
            self._failed.pop(key, None)
            return
        why = error.message if isinstance(error, SpaceError) else "the exchange failed"
        if not isinstance(error, SpaceError):
            log.error("no token of secret %s: %s", key[1], type(error).__name__)
        self._failed[key] = (self._clock() + _REST, why)

    async def _get(self, key: tuple[str, str]) -> Token:
        known = self._secrets.get(*key)  # as it is now, which may be another than the asker's
        parts = self._secrets.parts(known)
        minter = self._minter()
        if minter is None or not minter.open:
            raise Unavailable("there is no minter", hint="it is started again; repeat in a moment")
        public = known.facts.public
        form, basic = _asked(known, parts)
        status, body = await minter.exchange(public["endpoint"], form, basic)
        answer = _answer(public["endpoint"], status, body)
        if answer.refresh_token is not None and known.facts.kind == "oauth_refresh":
            turned = answer.refresh_token.encode()
            if turned != parts["refresh_token"].reveal():
                kept = {name: value.reveal() for name, value in parts.items()} | {"refresh_token": turned}
                try:
                    known = self._secrets.rotate_parts(known, kept, self._now())
                except Conflict as error:
                    raise Unavailable(error.message) from None
        life = _USUAL if answer.expires_in is None else min(answer.expires_in, _MOST_LIFE)
        return Token(Secret(answer.access_token.encode()), self._clock() + max(life - _MARGIN, min(life, 1.0)), known.version)


def _asked(known: Known, parts: dict[str, Secret]) -> tuple[Secret, Secret | None]:
    """The form, and `client:secret` where the client has one (RFC 6749, 2.3.1)."""
    public = known.facts.public
    fields: list[tuple[str, str | bytes]]
    if known.facts.kind == "oauth_refresh":
        fields = [("grant_type", "refresh_token"), ("refresh_token", parts["refresh_token"].reveal())]
    else:
        fields = [("grant_type", "client_credentials")]
    fields += [(name, public[name]) for name in ("scope", "audience") if name in public]
    basic = None
    if "client_secret" in parts and public.get("auth") != "post":
        basic = Secret(quote(public["client_id"], safe="").encode() + b":" + quote(parts["client_secret"].reveal(), safe="").encode())
    else:
        fields.append(("client_id", public["client_id"]))
        if "client_secret" in parts:
            fields.append(("client_secret", parts["client_secret"].reveal()))
    return Secret(urlencode(fields).encode()), basic


def _answer(endpoint: str, status: int, body: Secret) -> _Answer:
    """Unavailable, without a word of what came but the standard's own for a fault."""
    if status != _OK:
        word = ""
        if status >= _BAD:
            try:
                word = msgspec.json.decode(body.reveal(), type=_Error).error
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                word = ""
        known = word if word in _ERRORS else "no reason that the standard knows"
        raise Unavailable(f"endpoint {endpoint} gave no token: status {status}, {known}")
    try:
        answer = msgspec.json.decode(body.reveal(), type=_Answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Unavailable(f"endpoint {endpoint} answered with what is no token") from None
    if answer.token_type.lower() != "bearer" or not answer.access_token or not answer.access_token.isascii():
        raise Unavailable(f"endpoint {endpoint} gave a token of another type than bearer")
    return answer


_ERRORS = frozenset(
    {"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}
    | {"temporarily_unavailable", "server_error"}
)
