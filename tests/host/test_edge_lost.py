"""An edge whose namespace cannot be reached any more, while its guest lives in it."""

from __future__ import annotations

import os

import pytest

from space.host import namespaces
from space.model.errors import Conflict
from space.testing.roothost import RootHost

RANGE = "198.18.0.0/15"


def test_a_slot_whose_namespace_is_not_here_while_its_vmm_lives_is_not_made_anew(host: RootHost) -> None:
    """A serve in another mount namespace sees no pin; what it would make has no guest, and would be called whole."""
    request = host.prepare(slot=4)
    host.ask(lambda client: client.create_edge(4, RANGE, literal=False)).close()
    pidfd = host.start(request)
    namespaces.let_go(host.instance.netns(4))
    with pytest.raises(Conflict, match=f"the namespace of slot 4 is not here, and the VMM of {request.sandbox} lives in it"):
        host.ask(lambda client: client.create_edge(4, RANGE, literal=False))
    host.ask(lambda client: client.kill_vmm(request.sandbox, 1))
    assert namespaces.wait_ended(pidfd, 10)
    os.close(pidfd)
    host.ask(lambda client: client.create_edge(4, RANGE, literal=False)).close()
