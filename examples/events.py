"""What happens to sandboxes, told as it happens: each event once and in order, also over a connection that breaks."""

from __future__ import annotations

import asyncio

from space import AsyncClient, AsyncSandbox
from space.sdk import Event


async def main() -> None:
    async with AsyncClient() as client:
        sandbox = await AsyncSandbox.create(client=client, metadata={"job": "17"}, ttl_seconds=600)
        await sandbox.update(metadata={"state": "checked"}, ttl_seconds=900)
        await sandbox.delete()
        async for event in client.events(after=0, sandbox=sandbox.id):
            if isinstance(event, Event) and event.kind != "phase":
                print(event.kind, *sorted(event.fields or ()))
                if event.kind == "deleted":
                    break


if __name__ == "__main__":
    asyncio.run(main())
