"""A terminal in a sandbox, as a program drives it."""

from __future__ import annotations

import asyncio

from space import AsyncSandbox, Output


async def main() -> None:
    async with await AsyncSandbox.create(ttl_seconds=600) as sandbox, await sandbox.shell(["sh"], rows=40, cols=120) as terminal:
        await terminal.send("echo from the sandbox\n")
        said = b""
        async for piece in terminal:
            said += piece.data if isinstance(piece, Output) else b""
            if b"from the sandbox\r\n" in said.replace(b"echo from the sandbox", b""):
                break
        await terminal.resize(50, 200)
        await terminal.send("exit 3\n")
        status = await terminal.wait()
        print("the shell said it, and ended with", status.code)


if __name__ == "__main__":
    asyncio.run(main())
