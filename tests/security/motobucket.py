"""A whole S3 (moto) behind a door that checks signatures, which moto does not."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from space.testing.signedbucket import SignedBucket
from space.testing.townshops import body_of

REGION = "eu-west-1"
_ACCOUNT = "123456789012"  # whose moto takes everything to be


class MotoBucket(SignedBucket):
    """moto: its socket. wrong: what was refused, and why. done: what was not."""

    def __init__(self, key: tuple[str, str], moto: Path) -> None:
        super().__init__(key, REGION)
        self._moto = moto
        self.done: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request; its connection ends with it."""
        head = await self.head(reader)
        if b"\r\nexpect: 100-continue\r\n" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await body_of(reader, head)
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        lines = head.decode("latin-1").split("\r\n")[1:]
        fields = {name.lower(): " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines if line)}
        wrong = self.wrong_with(method, target, fields, body)
        if wrong:
            self.wrong.append(f"{method} {target}: {wrong}")
            said = b"<Error><Code>SignatureDoesNotMatch</Code></Error>"
            writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
        else:
            self.signed += 1
            self.done.append(f"{method} {target}")
            writer.write(await self._of_moto(method, target, fields, body))
        await writer.drain()

    async def _of_moto(self, method: str, target: str, fields: dict[str, str], body: bytes) -> bytes:
        left = {
            name: value for name, value in fields.items() if name not in ("connection", "transfer-encoding", "expect", "content-length")
        }
        head = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in left.items()]]
        reader, writer = await asyncio.open_unix_connection(str(self._moto))
        try:
            writer.write("\r\n".join([*head, "connection: close", f"content-length: {len(body)}", "", ""]).encode("latin-1") + body)
            return await reader.read()
        finally:
            writer.close()


@contextmanager
def moto(bucket: str) -> Iterator[Path]:
    """Where it listens: a UNIX socket, for a town's thread has a network of its own. bucket: one that it has."""
    os.environ["S3_IGNORE_SUBDOMAIN_BUCKETNAME"] = "true"  # the host's first label is no bucket's name
    from moto.backends import get_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    get_backend("s3")[_ACCOUNT]["aws"].create_bucket(bucket, REGION)
    with tempfile.TemporaryDirectory(prefix="moto") as directory:
        path = Path(directory) / "socket"
        server = make_server(f"unix://{path}", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
        thread = threading.Thread(target=server.serve_forever, name="moto")
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
