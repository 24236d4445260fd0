"""What a sandbox may reach after each of its lives began: the policy of now, by an authority of that life alone, from the first packet."""

from __future__ import annotations

import base64
import time

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tests.machine.test_egress import ALLOWED, OTHER, bare, create, get, place, policy, put, run, sh, state_of

from space.model.ids import new_checkpoint_id, new_sandbox_id
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Message, Session
from space.testing import leaks
from space.testing.bareinstance import BareInstance
from space.testing.egresstown import Town

__all__ = ["bare", "place"]

YOUNG = "young.example.com"
# A handshake that the guest's own store verifies, by its own clock; the certificate as it came.
HANDSHAKE = """python3 - {name} <<'end'
import base64, socket, ssl, sys
plain = socket.create_connection((sys.argv[1], 443), timeout=10)
with ssl.create_default_context().wrap_socket(plain, server_hostname=sys.argv[1]) as wrapped:
    print(base64.b64encode(wrapped.getpeercert(True)).decode())
end"""


async def authority(session: Session, sandbox: str, name: str) -> bytes:
    """The key of the intermediate that vouched for that name, as the leaf says it."""
    said = await sh(session, sandbox, HANDSHAKE.format(name=name))
    leaf = x509.load_der_x509_certificate(base64.b64decode(said))
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
    found = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    assert found
    return found


async def lived(session: Session, verb: str, asked: msgspec.Struct) -> api.SandboxState:
    async with await session.open(verb, asked, finish=True) as stream:
        found = [event.payload async for event in stream if isinstance(event, Message)]
    return msgspec.msgpack.decode(found[-1], type=api.SandboxState)


@pytest.mark.timeout(200)
def test_each_life_has_the_policy_of_now_an_intermediate_of_its_own_and_is_answered_at_once(bare: BareInstance, place: Town) -> None:
    async def work(session: Session) -> None:
        first = policy({"host": ALLOWED})
        sandbox = (await create(session, first)).sandbox
        keys = [await authority(session, sandbox, ALLOWED)]
        name = new_checkpoint_id()
        await session.call("checkpoint", life_api.Checkpoint(sandbox=sandbox, checkpoint=name))

        assert (await lived(session, "suspend", api.Target(sandbox))).phase == "suspended"
        place.serve(YOUNG)  # its certificate, and the leaf that the guest sees for it, are younger than the guest's clock was
        second = await put(session, policy({"host": OTHER}, {"host": YOUNG}))
        woken = await lived(session, "wake", life_api.Wake(sandbox=sandbox, generation=2, policy=second, policy_generation=7))
        assert (woken.phase, woken.start, woken.egress.policy_generation) == ("running", "restore", 7), woken.reason
        began = time.monotonic()
        keys.append(await authority(session, sandbox, YOUNG))  # the first packets of this life
        assert time.monotonic() - began < 10
        assert (await get(session, sandbox, OTHER))[0] == "200"
        assert (await get(session, sandbox, ALLOWED))[0] != "200"  # of the snapshot's policy nothing is left

        child = new_sandbox_id()
        third = await put(session, policy({"host": YOUNG}))
        forked = life_api.Child(sandbox=child, generation=1, policy=third, policy_generation=3)
        state = await lived(session, "fork", life_api.Fork(sandbox=sandbox, children=[forked]))
        assert (state.phase, state.egress.policy_generation) == ("running", 3), state.reason
        keys.append(await authority(session, child, YOUNG))
        assert (await get(session, child, OTHER))[0] != "200"
        assert (await get(session, sandbox, OTHER))[0] == "200"  # the parent goes on with its own

        back = life_api.Rollback(sandbox=sandbox, checkpoint=name, generation=3, policy=second, policy_generation=8)
        state = await lived(session, "rollback", back)
        assert (state.phase, state.egress.policy_generation) == ("running", 8), state.reason
        keys.append(await authority(session, sandbox, OTHER))
        assert (await get(session, sandbox, ALLOWED))[0] != "200"  # which was allowed at that instant

        assert (await lived(session, "stop", api.Target(sandbox))).phase == "stopped"
        started = await lived(session, "wake", life_api.Wake(sandbox=sandbox, generation=4, policy=third, policy_generation=9))
        assert (started.phase, started.start, started.egress.policy_generation) == ("running", "cold", 9), started.reason
        keys.append(await authority(session, sandbox, YOUNG))
        assert (await state_of(session, sandbox)).egress.waiting_for == []
        assert len(set(keys)) == len(keys), "two lives share an intermediate"
        for each in (sandbox, child):
            await session.call("delete", api.Target(each))

    run(bare, work)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))
