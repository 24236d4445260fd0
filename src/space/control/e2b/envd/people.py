"""Users and paths as E2B's clients give them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import NoReturn

from space.control.e2b.envd.connect import Fault
from space.model.errors import InvalidArgument, SpaceError, Unauthenticated

_MOST_PATH = 4095
_MOST_NAME = 32
# How the guest's daemon says that it has no such account (`users.rs`).
_NO_USER = "there is no user "


def user_of(headers: Mapping[str, str], default: str) -> str:
    """The user that a call names by Basic authorization, without a password. Unauthenticated."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return default
    try:
        name = base64.b64decode(text.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        raise Unauthenticated("the Authorization header is no Basic authorization") from None
    return known(name or default)


def known(name: str) -> str:
    """A name that may be an account's. Unauthenticated."""
    if not 0 < len(name) <= _MOST_NAME or not all(letter.isalnum() or letter in "_-.$" for letter in name) or not name.isascii():
        raise no_user(name)
    return name


def no_user(name: str) -> Unauthenticated:
    """There is no such account."""
    return Unauthenticated(f"invalid username: '{name[:64]}'")


def refused(error: SpaceError, user: str) -> NoReturn:
    """Raise the guest's refusal as this face tells it."""
    if isinstance(error, InvalidArgument) and error.message.startswith(_NO_USER):
        raise no_user(user) from None
    raise error


def path_of(text: str) -> bytes:
    """A path for the guest, where what is relative begins at the user's home. Empty: the home itself. Fault."""
    if text == "~":
        text = ""
    text = text.removeprefix("~/").lstrip("/") if text.startswith("~/") else text
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Fault("invalid_argument", "the path holds a character that is none") from None
    if b"\0" in raw or len(raw) > _MOST_PATH:
        raise Fault("invalid_argument", f"a path has at most {_MOST_PATH} bytes, and no NUL among them")
    return raw or b"."
