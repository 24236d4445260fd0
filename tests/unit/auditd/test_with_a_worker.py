"""A gateway's worker with the real signer and the real keeper of records: other processes, reached over their sockets alone."""

from __future__ import annotations

import contextlib
import json
import ssl
from pathlib import Path

import pytest

from space.audit.files import export, verify_files
from space.audit.publickey import PublicKey
from space.audit.records import Note, Record, encode
from space.gateway.surroundings import Leaf
from space.rpc.audit_client import AuditControl, RecordSocket
from space.rpc.broker_client import BrokerControl, Signer
from space.rpc.packets import pair
from space.testing.brokerprocess import AuditProcess, BrokerProcess
from space.testing.egress import SANDBOX
from space.testing.egresslab import ALLOWED, OTHER, REFUSED, get, place, run


def test_a_worker_serves_a_guest_with_leaves_and_records_of_other_processes_and_no_new_name_without_a_signer(tmp_path: Path) -> None:
    async def main() -> None:
        with contextlib.ExitStack() as stack:
            broker, audit = BrokerProcess(tmp_path), AuditProcess(tmp_path)
            for process in (broker, audit):
                process.start()
                stack.callback(process.stop)
            toward, control = BrokerControl.connect(broker.socket), AuditControl.connect(audit.socket)
            stack.callback(toward.close)
            stack.callback(control.close)
            trusted = (await toward.make_root("base", 1)).decode()
            theirs, ours = pair()
            await toward.bind_sandbox(theirs, SANDBOX, 3, "base", 1)
            signer = Signer(ours)
            theirs, ours = pair()
            await toward.bind_writer(theirs, ("gateway", "dialer"))
            await control.bind_broker(ours)
            theirs, ours = pair()
            await control.bind_source(theirs, "gateway", SANDBOX, 3)
            records = RecordSocket(ours)

            async def leaf(name: str) -> Leaf:
                return Leaf(*await signer.leaf(name))

            def record(one: Record) -> None:
                records.note(encode(Note(one)))

            async with place(tmp_path, leaf=leaf, record=record) as at:
                upstream = await at.serve(ALLOWED)
                context = ssl.create_default_context(cadata=trusted)
                reader, writer = await at.tls(ALLOWED, context=context)
                writer.write(get(at, "/a?token=s3cret", "Connection: close\r\n"))
                assert (await reader.read(-1)).startswith(b"HTTP/1.1 200 OK\r\n")
                writer.close()
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    await at.tls(REFUSED, context=context)
                await at.empty()
                broker.kill()
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await at.tls(OTHER, context=context)
                await at.empty()
                assert len(upstream.heads) == 1
            broker.start()
            again = BrokerControl.connect(broker.socket)
            stack.callback(again.close)
            audit.stop()
            kept = [json.loads(line) for line in export(audit.data, "gateway")]
            assert [one["type"] for one in kept[:2]] == ["request", "connection"]
            assert (kept[0]["sandbox"], kept[0]["generation"], kept[0]["query"], kept[0]["status"]) == (SANDBOX, 3, ["token"], 200)
            assert any(one.get("reason") for one in kept), "the refusal"
            assert b"s3cret" not in b"".join(export(audit.data, "gateway"))
            assert verify_files(audit.data, "gateway", PublicKey(await again.head_key())).intact

    run(main())
