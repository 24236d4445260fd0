"""The SDK without asyncio, generated from `space.sdk._async` by tools/unasync.py (`_wait` is written by hand)."""
