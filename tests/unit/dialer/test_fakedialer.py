"""The fake stands beside the dialer: both answer the same questions the same way."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Sequence

from space.core.policy.document import digest
from space.core.wire.dialing import Answer
from space.model.errors import SpaceError
from space.rpc.dialer_client import DialerControl, DialSocket
from space.rpc.packets import pair
from space.testing.dialerlab import NAME, ONE, document, placed
from space.testing.dnslab import run
from space.testing.fakedialer import FakeDialer


async def _contract(control: DialerControl | FakeDialer) -> list[str]:
    """What both must do, as words."""
    said: list[str] = []

    async def tried(what: Awaitable[None]) -> None:
        try:
            await what
            said.append("ok")
        except SpaceError as error:
            said.append(error.code)

    def end() -> socket.socket:
        return pair()[0]

    data = document("a.example.com:1")
    name = digest(data)
    await tried(control.bind(end(), ONE, 1, name, 1))  # not there yet
    await tried(control.put_policy(name, document("a.example.com:2")))
    await tried(control.put_policy(name, data))
    await tried(control.put_policy(name, data))
    await tried(control.bind(end(), ONE, 2, name, 5))
    await tried(control.bind(end(), ONE, 1, name, 5))  # an old life
    await tried(control.bind(end(), ONE, 2, name, 4))  # an old policy
    await tried(control.bind(end(), ONE, 2, name, 5))  # again
    await tried(control.set_policy(ONE, 1, name, 6))
    await tried(control.set_policy(ONE, 2, "f" * 32, 6))
    await tried(control.set_policy(ONE, 2, "", 6))
    await tried(control.set_policy(ONE, 2, name, 6))  # another by that number
    await tried(control.set_policy(ONE, 2, "", 6))
    await tried(control.set_policy(ONE, 2, name, 7))
    await tried(control.drop_policies(()))
    standing = await control.describe()
    said.append(
        f"{standing.policies} {standing.recorded} {[(one.sandbox, one.generation, one.policy_generation) for one in standing.bindings]}"
    )
    await tried(control.bind_audit(end()))
    await tried(control.end(ONE, 1))
    await tried(control.end(ONE, 2))
    await tried(control.end(ONE, 2))
    await tried(control.drop_policies(()))
    standing = await control.describe()
    said.append(f"{standing.policies} {standing.bindings}")
    return said


def test_the_fake_answers_the_node_as_the_dialer_does() -> None:
    async def main() -> None:
        async with placed(audited=False) as at:
            fake = FakeDialer()
            real, faked = await _contract(at.control), await _contract(fake)
            fake.close()
            assert faked == real
            assert real.count("ok") >= 10
            assert {"not_found", "conflict", "invalid_argument"} <= set(real)

    run(main())


def test_the_fake_answers_a_worker_as_the_dialer_does() -> None:
    async def main() -> None:
        async with placed() as at:
            fake = FakeDialer()
            fake.places[NAME, at.port] = ("127.9.0.1", at.port)
            theirs, ours = pair()
            data = document(f"{NAME}:{at.port}")
            await fake.put_policy(digest(data), data)
            await fake.bind(theirs, ONE, 1, digest(data), 1)
            await fake.bind_audit(pair()[0])
            real, faked = await at.bound(), DialSocket(ours)
            for target, port, number in ((NAME, at.port, 1), ("b.example.com", at.port, 1), (NAME, at.port, 2)):
                answers: Sequence[Answer] = []
                for worker in (real, faked):
                    answer, sock = await worker.dial(target, port, number)
                    if sock is not None:
                        sock.close()
                    answers = [*answers, Answer(0, answer.name, answer.port, answer.address, answer.reason, answer.denied)]
                assert answers[0] == answers[1]
            fake.close()

    run(main())
