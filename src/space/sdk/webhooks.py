"""Receiving webhooks: is this delivery from the server that was given the secret, and is it fresh?"""

from __future__ import annotations

import hashlib
import hmac
import time

from space.model.errors import PermissionDenied

SIGNATURE_HEADER = "Space-Signature"
TOLERANCE_SECONDS = 300


def verify(secret: str, signature: str, body: bytes, *, tolerance: float = TOLERANCE_SECONDS, now: float | None = None) -> None:
    """Check a delivery before trusting its body. signature: the header `Space-Signature`. body: the bytes as they came, undecoded.

    Raises PermissionDenied when the signature is not the secret's, or was made more than `tolerance` seconds ago (or ahead): a recorded
    delivery must not be of use to anybody later.

        verify(secret, request.headers["Space-Signature"], await request.body())
    """
    pairs = [part.strip().partition("=") for part in signature.split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    given = [value for name, _, value in pairs if name == "v1"]
    if len(times) != 1 or not times[0].isascii() or not times[0].isdigit() or len(times[0]) > 12 or not given:
        raise PermissionDenied("the signature has not the form t=...,v1=...")
    wanted = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    if not any(hmac.compare_digest(wanted.encode(), value.encode("utf-8", "surrogateescape")) for value in given):
        raise PermissionDenied("the signature is not that of this secret and body")
    age = (time.time() if now is None else now) - int(times[0])
    if abs(age) > tolerance:
        raise PermissionDenied(f"the signature is {age:.0f} s old", hint="is this machine's clock right?")
