"""API keys: `space_<id>_<secret>`. Minted, listed, revoked; the secret is shown once and stored as its SHA-256.

For E2B's clients, some of which look at a key's form, there are keys `e2b_<40 hex digits>`: they say no id, and are found by their
digest. Else they are keys like any other.

A plain digest is enough, because the secret is 256 random bits (160 of E2B's form): there is no dictionary to try, and a slow hash would
only slow every request. Keys are also held in memory, which this process alone changes, so a revocation counts at once;
minting and revoking are on the disk before they are answered.

Wrong keys are counted by address. A right key always passes: behind one address (loopback, a proxy) live many callers,
and guessing 256 bits is hopeless; the allowance keeps a broken or hostile client from filling log and processor.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import Connection, insert, select, update

from space.control import limits
from space.control.problems import TooMany
from space.control.store import schema
from space.control.store.store import Store
from space.control.wire import KeyInfo
from space.model.errors import Conflict, NotFound, Unauthenticated

log = logging.getLogger("space.control.keys")
ADMIN = "admin"
TENANT = "tenant"
DEFAULT_TENANT = "default"
_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True, slots=True)
class Key:
    """A key. digest: of the secret. Times: microseconds since the epoch."""

    id: str
    tenant: str
    scope: str
    name: str
    digest: bytes = field(repr=False)
    created_us: int
    revoked_us: int | None = None

    def info(self) -> KeyInfo:
        """As the API shows it."""
        revoked = None if self.revoked_us is None else self.revoked_us / 1e6
        return KeyInfo(self.id, self.tenant, self.scope, self.name, self.created_us / 1e6, revoked)


@dataclass(frozen=True, slots=True)
class Minted:
    """A key and, this once, its text."""

    key: Key
    text: str = field(repr=False)


class KeyRing:
    """Every key there is."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._keys: dict[str, Key] = {}
        self._by_digest: dict[bytes, str] = {}
        self._wrong = Allowance(limits.WRONG_KEYS, limits.WRONG_KEYS_PER_SECOND, clock)

    async def load(self) -> None:
        """Read what is stored."""
        rows = await self._store.read(lambda connection: connection.execute(select(schema.keys)).all())
        self._keys = {row.id: Key(row.id, row.tenant, row.scope, row.name, row.digest, row.created_us, row.revoked_us) for row in rows}
        self._by_digest = {key.digest: key.id for key in self._keys.values()}

    def infos(self) -> list[KeyInfo]:
        """All of them, oldest first."""
        return [key.info() for key in sorted(self._keys.values(), key=lambda key: (key.created_us, key.id))]

    def authenticate(self, text: str | None, peer: str) -> Key:
        """The key behind `text`. Unauthenticated, or TooMany when this address has given too many wrong ones."""
        if text is None:
            raise Unauthenticated("this needs a key", hint="send `Authorization: Bearer <key>`")
        key = self._matching(text)
        if key is not None:
            return key
        wait = self._wrong.spend(peer)
        if wait:
            raise TooMany("too many wrong keys from this address", hint=f"try again in {wait} s", retry_after=wait)
        raise Unauthenticated("the key is unknown or revoked", hint="`space key` mints one")

    def _matching(self, text: str) -> Key | None:
        prefix, _, rest = text.partition("_")
        if prefix == "e2b":
            # What a look-up's time tells is about a digest, of which nobody can choose a byte.
            named = self._by_digest.get(_digest(text))
            found = None if named is None else self._keys[named]
            return found if found is not None and found.revoked_us is None else None
        key_id, _, secret = rest.partition("_")
        if prefix != "space":
            return None
        key = self._keys.get(key_id)
        # An unknown id costs the same comparison as a known one.
        same = hmac.compare_digest(_digest(secret), key.digest if key is not None else bytes(32))
        return key if same and key is not None and key.revoked_us is None else None

    async def mint(self, tenant: str, scope: str, name: str, *, e2b: bool = False) -> Minted:
        """A new key, on the disk when this returns. e2b: of the form that E2B's clients know."""
        minted = new(tenant, scope, name, e2b=e2b)
        await self._keep(minted.key)
        return minted

    async def revoke(self, key_id: str) -> None:
        """End a key; idempotent. NotFound; Conflict for the last admin key, without which nobody could mint another."""
        key = self._keys.get(key_id)
        if key is None:
            raise NotFound(f"there is no key {key_id[:32]!r}")
        if (
            key.revoked_us is None
            and key.scope == ADMIN
            and not any(other.scope == ADMIN and other.revoked_us is None for other in self._keys.values() if other is not key)
        ):
            raise Conflict("this is the last admin key", hint="mint another one first")
        if key.revoked_us is None:
            # In memory first: a request that arrives while the disk works must not pass any more.
            self._keys[key_id] = revoked = replace(key, revoked_us=time.time_ns() // 1000)
        else:
            revoked = key
        await self._store.write(lambda connection: _revoke(connection, revoked), durable=True)
        log.info("key %s of tenant %s is revoked", key.id, key.tenant)

    async def ensure_admin(self, path: Path) -> None:
        """At the first start: an admin key of tenant `default`, in a file that only this process's uid and root can read.

        The file comes first: a crash between the two leaves a file with a key that nobody knows, which the next start replaces.
        """
        if any(key.scope == ADMIN and key.revoked_us is None for key in self._keys.values()):
            return
        minted = new(DEFAULT_TENANT, ADMIN, "first start")
        write_secret(path, minted.text)
        await self._keep(minted.key)

    async def _keep(self, key: Key) -> None:
        await self._store.write(lambda connection: _insert(connection, key), durable=True)
        self._keys[key.id] = key
        self._by_digest[key.digest] = key.id
        log.info("key %s with scope %s is minted for tenant %s", key.id, key.scope, key.tenant)


def new(tenant: str, scope: str, name: str, *, e2b: bool = False) -> Minted:
    """A key made of fresh random bits, kept nowhere yet."""
    key_id = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(12))
    if e2b:
        text = f"e2b_{secrets.token_hex(20)}"
        return Minted(Key(key_id, tenant, scope, name, _digest(text), time.time_ns() // 1000), text)
    secret = secrets.token_hex(32)
    return Minted(Key(key_id, tenant, scope, name, _digest(secret), time.time_ns() // 1000), f"space_{key_id}_{secret}")


def write_secret(path: Path, text: str) -> None:
    """Put `text` and a newline into `path`, mode 0600, whole or not at all, on the disk when this returns."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.unlink(missing_ok=True)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    staged.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Allowance:
    """A token bucket for each address, the least recent ones forgotten."""

    def __init__(self, size: int, per_second: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._rate = per_second
        self._clock = clock
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, peer: str) -> int:
        """Take one; 0, or how many seconds until there is one again."""
        now = self._clock()
        left, at = self._peers.get(peer, (float(self._size), now))
        left = min(self._size, left + (now - at) * self._rate)
        spent = left >= 1
        self._peers[peer] = (left - 1 if spent else left, now)
        self._peers.move_to_end(peer)
        if len(self._peers) > limits.MAX_PEERS:
            self._peers.popitem(last=False)
        return 0 if spent else max(1, int((1 - left) / self._rate + 0.999))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _insert(connection: Connection, key: Key) -> None:
    connection.execute(
        insert(schema.keys).values(
            id=key.id, tenant=key.tenant, scope=key.scope, name=key.name, digest=key.digest, created_us=key.created_us, revoked_us=None
        )
    )


def _revoke(connection: Connection, key: Key) -> None:
    connection.execute(update(schema.keys).where(schema.keys.c.id == key.id).values(revoked_us=key.revoked_us))
