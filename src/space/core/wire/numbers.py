"""Integers of the wire by size, as msgspec checks them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

U8 = Annotated[int, Meta(ge=0, le=255)]
U16 = Annotated[int, Meta(ge=0, le=0xFFFF)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
U64 = Annotated[int, Meta(ge=0)]  # MessagePack has no larger integer
I64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
