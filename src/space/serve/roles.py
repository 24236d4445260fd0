"""The services of an instance, in the order in which each needs those before it; they are stopped the other way round.

So the ingress hangs up before control, control lets its requests end while the node is there, the node its sandboxes while the gateway
is, the gateway's and the dialer's last records still find the keeper of records, and its last word the broker that vouches for it. They
are started side by side: who connects to one that is not up yet waits in its listener.
"""

from __future__ import annotations

from space.config.instance import Instance
from space.host import syscalls
from space.serve.service import Role


def of_instance(instance: Instance) -> list[Role]:
    """How long each may take to end: control lets requests in flight finish, the node closes its ledger, the keeper seals its chains."""
    return [
        Role("rootd", 0, 5),
        Role("broker", instance.broker_uid, 5, locks_memory=True),
        Role("audit", instance.audit_uid, 10, package="auditd"),
        Role("dialer", instance.dialer_uid, 5),
        Role("minter", instance.minter_uid, 5, alone=True),
        Role("gateway", instance.gateway_uid, 5, capabilities=(syscalls.CAP_SETUID, syscalls.CAP_SETGID), alone=True),
        Role("node", instance.node_uid, 10),
        Role("control", instance.control_uid, 10, also=True),
        Role("ingress", instance.ingress_uid, 5, alone=True, also=True),
    ]
