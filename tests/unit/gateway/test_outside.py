"""What a worker verifies upstreams by."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

import pytest

from space.core.policy import document
from space.gateway.outside import Outside
from space.gateway.tls import upstream_context
from space.testing.egress import Signer


def test_a_rules_authorities_stand_beside_the_machines_and_only_where_a_rule_names_them() -> None:
    ours, theirs = Signer(), Signer()
    rules = [{"host": "a.example.com", "ca": "inner"}, {"host": "b.example.com"}]
    data = document.compose({"sandbox": {"version": 1, "rule": rules}}, bundles={"inner": theirs.root.pem.decode()})

    async def main() -> None:
        zygote, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        outside = Outside("sb-" + "a" * 20, worker, ours.root.pem.decode(), lambda: None, lambda _: None)
        descriptor = os.memfd_create("policy")
        os.write(descriptor, data)
        assert outside.take_policy(1, descriptor) == ""
        assert _subjects(outside._bundle(None)) == {_subject(ours)}
        assert _subjects(outside._bundle("inner")) == {_subject(ours), _subject(theirs)}
        with pytest.raises(KeyError):
            outside._bundle("other")
        outside._zygote.close()  # before the other end is: a worker that is alone ends itself
        zygote.close()

    asyncio.run(main())


def _subjects(bundle: str) -> set[str]:
    return {str(one["serialNumber"]) for one in upstream_context(bundle).get_ca_certs()}


def _subject(signer: Signer) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=signer.root.pem.decode())
    return str(context.get_ca_certs()[0]["serialNumber"])
