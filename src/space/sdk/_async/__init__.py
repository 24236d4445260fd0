"""The SDK for asyncio, written by hand; `space.sdk._sync` is generated from it."""
