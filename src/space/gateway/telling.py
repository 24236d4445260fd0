"""What a request tells besides what is judged: credentials that it brings, and another method, path or host for servers that believe it.

Servers read one name in several spellings: many make `-` and `_` the same, escapes in a query are undone, and what follows a `[` is an
index. So a name is brought into one form before it is looked at, and a credential is known by what it calls itself, for no list of the
services that there are is ever whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from space.core.credentials import slots
from space.core.wire.http1 import HOP_BY_HOP, Field

Override = Literal["method_override", "path_override"]

_METHODS = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
# In a query: `_method` of several frameworks, `$httpMethod` of others.
_METHOD_KEYS = _METHODS | {"-method", "$httpmethod"}
# Another path; that of a copy, with WebDAV.
_PATHS = frozenset(
    {"x-original-url", "x-original-uri", "x-original-path", "x-rewrite-url", "x-override-url", "x-request-uri", "x-script-name"}
    | {"x-forwarded-uri", "x-forwarded-path", "x-forwarded-prefix", "x-envoy-original-path", "destination"}
)
# Another host, or the framing of a message: what a guest has no say in.
_DROPPED = frozenset(
    {b"forwarded", b"x-forwarded-host", b"x-forwarded-server", b"x-forwarded-port", b"x-forwarded-proto", b"x-host", b"x-original-host"}
    | {b"x-http-host-override"}
)
_FRAMING = HOP_BY_HOP | {b"content-length", b"host"}

# The last word of a credential's name, or all of it where nobody writes it in words.
_SECRETS = frozenset(
    {
        "authorization",
        "auth",
        "token",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "jwt",
        "credential",
        "credentials",
        "cookie",
        "cookie2",
    }
    | {"signature", "sig", "assertion", "dpop", "apikey", "accesskey", "accesstoken", "authtoken", "apitoken", "clientsecret", "idtoken"}
    | {"refreshtoken", "privatetoken", "secretkey"}
)
# Before `key`, which by itself is the name of many things.
_KEYS = frozenset(
    {"", "x", "api", "access", "account", "admin", "app", "application", "auth", "client", "functions", "license", "master", "private"}
    | {"secret", "server", "service", "shared", "subscription", "team", "write"}
)
# Before `token`: places in lists, and what guards a form.
_PLACES = frozenset({"csrf", "xsrf", "page", "next", "previous", "prev", "sync", "continuation", "pagination", "cursor", "start", "resume"})


@lru_cache(16)
def of_fields(fields: tuple[Field, ...]) -> tuple[bool, Override | None]:
    """Whether a credential is among them, and what would override what is judged. A client says the same ones many a time."""
    names = {field[0].decode("ascii").replace("_", "-") for field in fields}
    return any(map(is_credential, names)), _override(names, _METHODS, _PATHS)


def of_query(query: str) -> tuple[bool, Override | None]:
    """The same of a query."""
    # A key may be spelled with escapes. All of them are undone: what is no credential afterwards was none before.
    keys = slots.keys(query)
    return any(map(is_credential, keys)), _override(keys, _METHOD_KEYS, frozenset())


def is_dropped(name: bytes) -> bool:
    """Whether a field, its name in lower case, goes no further: another host, or a word about framing in a spelling that is not its own."""
    if b"_" not in name:
        return name in _DROPPED
    usual = name.replace(b"_", b"-")
    return usual in _DROPPED or usual in _FRAMING


@lru_cache(512)
def is_credential(name: str) -> bool:
    """Whether something of that name, in lower case with `-`, is one."""
    before, _, last = name.rpartition("-")
    word = before.rpartition("-")[2]
    if last == "key":
        return word in _KEYS
    return last in _SECRETS and not (last == "token" and word in _PLACES)


def _override(names: Iterable[str], methods: frozenset[str], paths: frozenset[str]) -> Override | None:
    if not methods.isdisjoint(names):
        return "method_override"
    return None if paths.isdisjoint(names) else "path_override"
