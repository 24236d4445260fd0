"""The dialer's sockets: who is dialled for is the socket, what nobody takes is closed, no sandbox waits for another."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from space.audit.records import Dialled, Kept, Repeated
from space.core.policy.document import compose, digest, read
from space.core.wire import dialing
from space.core.wire.dialing import Answer, Request
from space.dialer.desk import Limits
from space.model.errors import Conflict, InvalidArgument, NotFound, Unavailable
from space.rpc.dialer_client import DialSocket, sealed
from space.rpc.packets import pair, send_with
from space.testing.dialerlab import NAME, ONE, OTHER, document, placed
from space.testing.dnslab import run


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def peer_is_gone(sock: socket.socket) -> bool:
    """Whether what is connected to the other side has been shut down or closed."""
    try:
        return sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def test_a_worker_gets_the_socket_of_what_its_policy_allows_and_a_record_stands_beside_it() -> None:
    async def main() -> None:
        async with placed() as at:
            worker = await at.bound()
            answer, sock = await worker.dial(NAME, at.port, 1)
            assert sock is not None
            assert (answer.address, sock.getpeername()) == ("127.9.0.1", ("127.9.0.1", at.port))
            sock.close()
            refused, none = await worker.dial("b.example.com", at.port, 1)
            assert (refused.reason, refused.denied, none) == ("name_not_allowed", True, None)
            stale, none = await worker.dial(NAME, at.port, 2)
            assert (stale.reason, none) == ("policy_generation", None)
            told = at.recorded()
            assert [(one.sandbox, one.generation, one.reason) for one in told if isinstance(one, Dialled)] == [
                (ONE, 1, ""), (ONE, 1, "name_not_allowed"), (ONE, 1, "policy_generation"),
            ]  # fmt: skip

    run(main())


def test_nothing_is_dialled_without_a_keeper_of_records_nor_after_it_went() -> None:
    async def main() -> None:
        async with placed(audited=False) as at:
            worker = await at.bound()
            assert (await worker.dial(NAME, at.port, 1))[0].reason == "record_failed"
            theirs, ours = pair()
            await at.control.bind_audit(theirs)
            _, sock = await worker.dial(NAME, at.port, 1)
            assert sock is not None
            sock.close()
            assert (await at.control.describe()).recorded
            ours.close()
            assert (await worker.dial(NAME, at.port, 1))[0].reason == "record_failed"
            assert not (await at.control.describe()).recorded
            theirs, ours = pair()
            await at.control.bind_audit(theirs)
            _, sock = await worker.dial(NAME, at.port, 1)
            assert sock is not None
            sock.close()
            ours.close()

    run(main())


def test_a_socket_that_nobody_takes_is_shut_down_wherever_it_is() -> None:
    async def main() -> None:
        async with placed(Limits(take=0.2)) as at:
            worker = await at.raw()
            with socket.create_server(("127.9.0.1", 0)) as listener:
                port = listener.getsockname()[1]
                await at.control.set_policy(ONE, 1, await at.policy(f"{NAME}:{port}"), 2)
                worker.send(dialing.encode(Request(1, 2, NAME, port)))
                far, _ = await asyncio.get_running_loop().run_in_executor(None, listener.accept)
                assert not peer_is_gone(far)
                await until(lambda: peer_is_gone(far))  # the worker has not read: the socket is in its queue
                _, rights, _, _ = worker.recvmsg(4096, socket.CMSG_SPACE(4))
                held = socket.socket(fileno=int.from_bytes(rights[0][2], "little"))
                with pytest.raises(OSError, match="pipe"):
                    held.send(b"x")
                held.close()
                far.close()
            assert (await at.control.describe()).bindings[0].dials == 0

    run(main())


def test_end_gives_up_what_is_under_way_and_closes_the_worker_socket() -> None:
    async def main() -> None:
        async with placed() as at:
            at.zone.silent = True
            worker = await at.bound()
            asked = asyncio.create_task(worker.dial(NAME, at.port, 1))
            await until(lambda: at.zone.asked)
            await at.control.end(ONE, 1)
            with pytest.raises(Unavailable):
                await asked
            await at.control.end(ONE, 1)
            with pytest.raises(NotFound):
                await at.control.set_policy(ONE, 1, "", 2)
            assert (await at.control.describe()).bindings == []

    run(main())


def test_a_new_life_ends_the_former_and_an_old_one_does_not_come_back() -> None:
    async def main() -> None:
        async with placed() as at:
            first = await at.bound(generation=1)
            second = await at.bound(generation=2, number=1)
            with pytest.raises(Unavailable):
                await first.dial(NAME, at.port, 1)
            with pytest.raises(Conflict):
                await at.bound(generation=1, number=9)
            with pytest.raises(Conflict):
                await at.control.set_policy(ONE, 2, "", 0)
            await at.control.end(ONE, 1)  # late news of the first life
            answer, sock = await second.dial(NAME, at.port, 1)
            assert not answer.reason
            assert sock is not None
            sock.close()

    run(main())


def test_a_changed_policy_holds_at_once_and_one_document_is_parsed_once_for_many() -> None:
    async def main() -> None:
        async with placed() as at:
            workers = [await at.bound(sandbox) for sandbox in (ONE, OTHER)]
            assert (await at.control.describe()).policies == 1
            await at.control.set_policy(ONE, 1, "", 2)
            assert (await workers[0].dial(NAME, at.port, 2))[0].reason == "no_policy"
            _, sock = await workers[1].dial(NAME, at.port, 1)
            assert sock is not None
            sock.close()
            with pytest.raises(NotFound):
                await at.control.set_policy(ONE, 1, "0" * 32, 3)
            await at.control.drop_policies(())
            assert (await at.control.describe()).policies == 1  # the other still has it
            await at.control.end(OTHER, 1)
            await at.control.drop_policies(())
            assert (await at.control.describe()).policies == 0

    run(main())


def test_a_sandbox_whose_names_are_slow_does_not_slow_another() -> None:
    async def main() -> None:
        async with placed(Limits(lookups=4)) as at:
            slow = [f"s{number}.slow.example.com" for number in range(60)]
            at.zone.address("fast.example.com", "127.9.0.1")

            policy = await at.policy(*(f"{name}:{at.port}" for name in slow))
            fast = await at.policy(f"fast.example.com:{at.port}")
            hostile, other = await at.bound(ONE, policy=policy), await at.bound(OTHER, policy=fast)
            answered = at.zone.answers

            def answers(wire: bytes, *, tcp: bool) -> list[bytes]:
                said = answered(wire, tcp=tcp)
                return [] if b"slow" in wire else said

            at.zone.answers = answers  # type: ignore[method-assign]
            asked = [asyncio.create_task(hostile.dial(name, at.port, 1)) for name in slow]
            await until(lambda: len({name for _, name, _ in at.zone.asked}) >= 4)
            begun = time.monotonic()
            _, sock = await other.dial("fast.example.com", at.port, 1)
            assert sock is not None
            sock.close()
            assert time.monotonic() - begun < 0.5
            assert len({name for _, name, _ in at.zone.asked if "slow" in name}) <= 4
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    run(main())


def test_dials_beyond_what_one_sandbox_may_have_are_refused_and_a_flood_of_denials_is_counted() -> None:
    async def main() -> None:
        async with placed(Limits(dials=2, waiting=3)) as at:
            at.zone.silent = True
            worker = await at.bound()
            asked = [asyncio.create_task(worker.dial(NAME, at.port, 1)) for _ in range(9)]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result()[0].reason for task in done} == {"dialer_busy"}
            await until(lambda: sum(task.done() for task in asked) == 4)
            await asyncio.gather(*asked)
            at.recorded()
            for _ in range(200):
                assert (await worker.dial("b.example.com", at.port, 1))[0].reason == "name_not_allowed"
            counted: list[Kept] = []

            def all_told() -> bool:
                counted.extend(at.recorded())
                return sum(one.count if isinstance(one, Repeated) else 1 for one in counted) == 200

            await until(all_told)
            assert any(isinstance(one, Repeated) for one in counted)

    run(main())


@pytest.mark.parametrize("what", ["pipe", "file", "unsealed", "other", "none"])
def test_a_document_comes_sealed_and_under_its_own_digest(what: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with placed() as at:
            data = document(f"{NAME}:1")
            descriptor = {"pipe": lambda: os.pipe()[0], "file": lambda: os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR),
                          "unsealed": lambda: os.memfd_create("x"), "other": lambda: sealed(document(f"{NAME}:2")),
                          "none": lambda: sealed(b"{}")}[what]()  # fmt: skip
            from space.rpc import dialer_api as api

            with pytest.raises(InvalidArgument):
                await at.control._do(api.PutPolicy(at.control._asker.number(), digest(data)), descriptor)
            os.close(descriptor)
            assert (await at.control.describe()).policies == 0

    run(main())


def test_an_answer_to_what_a_former_worker_asked_is_closed_by_the_next() -> None:
    async def main() -> None:
        theirs, ours = pair()
        worker = DialSocket(ours)
        asked = asyncio.create_task(worker.dial("mine.example.com", 443, 1))
        await asyncio.sleep(0)
        request = dialing.decode(theirs.recv(512))
        assert isinstance(request, Request)
        far, near = socket.socketpair()
        send_with(theirs, dialing.encode(Answer(request.id, "former.example.com", 443, "192.0.2.1")), near.fileno())
        near.close()
        far.settimeout(5)
        assert await asyncio.get_running_loop().run_in_executor(None, far.recv, 1) == b"", "closed"
        assert not asked.done()
        theirs.send(dialing.encode(Answer(request.id, "mine.example.com", 443, reason="connect_failed")))
        assert (await asked)[0].reason == "connect_failed"
        worker.close()
        theirs.close()
        far.close()

    run(main())


def test_own_and_private_addresses_are_refused_by_number_too() -> None:
    async def main() -> None:
        async with placed() as at:
            data = compose({"sandbox": {"version": 1, "cidr": ["10.0.0.0/8"]}})
            await at.control.put_policy(digest(data), data)
            worker = await at.bound(policy=digest(data))
            answer, sock = await worker.dial(IPv4Address("10.1.2.3"), 443, 1)
            assert (answer.reason, answer.denied, sock) == ("address_private", True, None)
            assert read(data).literals

    run(main())
