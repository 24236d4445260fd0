"""What may leave sandboxes: the part of a sandbox and of a client that speaks of policies and of requests that wait for a person."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from space.model.egress import Ask, EgressCounters, Explanation, NamedPolicy, Permission, PolicyLayer, SandboxPolicy
from space.model.egresslog import EgressRecord, RecordKind
from space.model.errors import InvalidArgument, ProtocolError, SpaceError
from space.sdk import policies
from space.sdk.policies import PolicySource
from space.sdk.recordlog import HEARTBEAT_LIMIT_SECONDS, EgressGap, RecordLog
from space.sdk.request import segment

from ._wait import sleep

if TYPE_CHECKING:
    from .client import AsyncClient

POLICY_SECONDS = 120.0  # a large one is checked, and every sandbox that it concerns is told


class AsyncSandboxEgress:
    """Of one sandbox."""

    _client: AsyncClient
    _path: str

    async def policy(self) -> SandboxPolicy:
        """The policy that it has: what it says, and whether the machine decides by it yet."""
        return policies.sandbox_policy(await self._client.call("GET", f"{self._path}/policy"))

    async def set_policy(self, policy: PolicySource | None) -> SandboxPolicy:
        """Another policy, live: connections that it does not allow any more are closed. None: nothing may leave.

        policy: a table, TOML text, a path, or the name of a stored policy, whose later changes it follows. Returns once the machine
        decides by it; `status.state` says `pending` when that was not so within some seconds. InvalidArgument has every mistake in
        `details`.
        """
        wanted = {"policy": None if policy is None else policies.policy_request(policy)}
        answer = await self._client.call("PUT", f"{self._path}/policy", json=wanted, seconds=POLICY_SECONDS, repeatable=True)
        return policies.sandbox_policy(answer)

    async def explain(self, url: str, *, method: str = "GET", websocket: bool = False, foreign: bool = False) -> Explanation:
        """What would become of a request, by the layers that hold now, and which rule says so. Nothing is sent anywhere."""
        wanted = {"url": url, "method": method, "websocket": websocket, "foreign": foreign}
        return policies.explanation(await self._client.call("POST", f"{self._path}/policy/explain", json=wanted, repeatable=True))

    async def asks(self) -> list[Ask]:
        """Requests that wait for a person's word, the oldest first."""
        return policies.asks(await self._client.call("GET", f"{self._path}/egress/asks"))

    async def answer(self, ask: Ask | str, allow: bool) -> None:  # it reads as a sentence
        """Let a request go, or not: exactly the one that was asked about. NotFound when it waits no longer."""
        if not isinstance(allow, bool):
            raise InvalidArgument(f"an answer is True or False, not {allow!r}")
        name = segment(ask.ask if isinstance(ask, Ask) else ask)
        await self._client.call("POST", f"{self._path}/egress/asks/{name}", json={"allow": allow})

    async def egress(self) -> EgressCounters:
        """What went out and came in, and what was refused, over this life of the sandbox."""
        return policies.counters(await self._client.call("GET", f"{self._path}/egress"))

    async def egress_log(
        self,
        after: str | None = None,
        *,
        follow: bool = False,
        since: str | None = None,
        denied: bool = False,
        kinds: Sequence[RecordKind] = (),
    ) -> AsyncGenerator[EgressRecord | EgressGap, None]:
        """What the gateway decided of its traffic, oldest first, each record once; with `follow` what comes. Also when it is gone.

        after: the `id` of the last record that is known. Without it: from the oldest that is kept, or with `follow` from now on. since: RFC
        3339 in UTC. denied: only refusals. `EgressGap` comes where records are kept no longer. A connection that breaks is made anew.
        """
        log = RecordLog(after)
        async with aclosing(told(self._client, f"{self._path}/egress/log", log, asked(since, denied, kinds), follow)) as found:
            async for record in found:
                yield record


def asked(since: str | None, denied: bool, kinds: Sequence[RecordKind]) -> dict[str, str]:
    """Which records, as parameters of a request."""
    return ({"since": since} if since else {}) | ({"denied": "1"} if denied else {}) | ({"kind": ",".join(kinds)} if kinds else {})


async def told(
    client: Any,
    path: str,
    log: RecordLog,
    params: Mapping[str, str],
    follow: bool,
) -> AsyncGenerator[EgressRecord | EgressGap, None]:
    """Records over as many connections as it takes."""
    while not log.done:
        try:
            wanted = {**params, **log.params(follow=follow)}
            log.begin()
            headers = {"accept": "application/x-ndjson"}
            limit = HEARTBEAT_LIMIT_SECONDS
            async with client.stream("GET", path, params=wanted, headers=headers, seconds=limit) as response:  # noqa: SIM117  # as it reads
                async with aclosing(client.lines(response, limit)) as lines:
                    async for line in lines:
                        record = log.receive(line)
                        if record is not None:
                            yield record
            log.finish(follow=follow)
        except SpaceError as fault:
            pause = log.wait_after(fault, random.random())  # noqa: S311  # spreads load, guards nothing
            if pause is None:
                raise
            await sleep(pause)


class AsyncClientPolicies:
    """Of the key's tenant; layers with an admin's key."""

    if TYPE_CHECKING:
        call: Any

    async def egress_log(
        self,
        after: str | None = None,
        *,
        follow: bool = False,
        since: str | None = None,
        denied: bool = False,
        kinds: Sequence[RecordKind] = (),
        tenant: str | None = None,
    ) -> AsyncGenerator[EgressRecord | EgressGap, None]:
        """As a sandbox's `egress_log`, of all of the tenant's; with an admin's key of everybody's, or of `tenant`."""
        log, params = RecordLog(after), asked(since, denied, kinds) | ({"tenant": tenant} if tenant else {})
        async with aclosing(told(self, "/v1/egress/log", log, params, follow)) as found:
            async for record in found:
                yield record

    async def policies(self) -> list[NamedPolicy]:
        """The tenant's stored policies, by name, without what they say."""
        answer = await self.call("GET", "/v1/policies")
        found = answer.get("policies") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise ProtocolError("the server's answer holds no list of policies", hint="is the server of another version?")
        return [policies.named_policy(item) for item in found]

    async def policy(self, name: str) -> NamedPolicy:
        """A stored policy, whole. NotFound."""
        return policies.named_policy(await self.call("GET", f"/v1/policies/{segment(name)}"))

    async def set_policy(self, name: str, policy: PolicySource) -> NamedPolicy:
        """Store a policy under a name, or change it: every sandbox that follows it gets it, live. InvalidArgument has every mistake."""
        wanted = {"policy": policies.policy_table(policy)}
        answer = await self.call("PUT", f"/v1/policies/{segment(name)}", json=wanted, seconds=POLICY_SECONDS, repeatable=True)
        return policies.named_policy(answer)

    async def delete_policy(self, name: str) -> None:
        """Forget a stored policy. Conflict while a sandbox follows it, or the tenant's layer names it."""
        await self.call("DELETE", f"/v1/policies/{segment(name)}")

    async def tenant_policy(self, tenant: str) -> PolicyLayer:
        """A tenant's layer. An admin's key."""
        return policies.layer(await self.call("GET", f"/v1/tenants/{segment(tenant)}/policy"))

    async def set_tenant_policy(
        self, tenant: str, policy: PolicySource | None = None, *, default: str | None = None, permits: Sequence[Permission] = ()
    ) -> PolicyLayer:
        """Set a tenant's layer, whole, live for all of its sandboxes. policy: narrows theirs; None does not. An admin's key.

        default: the stored policy that its sandboxes follow when they name none. permits: `open`, `record`, for its sandboxes.
        """
        wanted: Mapping[str, Any] = {
            "policy": None if policy is None else policies.policy_table(policy), "default": default, "permits": list(permits),
        }  # fmt: skip
        path = f"/v1/tenants/{segment(tenant)}/policy"
        return policies.layer(await self.call("PUT", path, json=wanted, seconds=POLICY_SECONDS, repeatable=True))

    async def operator_policy(self) -> PolicyLayer:
        """The operator's layer, over every tenant's. An admin's key."""
        return policies.layer(await self.call("GET", "/v1/policy"))

    async def set_operator_policy(self, policy: PolicySource | None) -> PolicyLayer:
        """Set the operator's layer, live for every sandbox; None does not narrow. An admin's key."""
        wanted = {"policy": None if policy is None else policies.policy_table(policy)}
        return policies.layer(await self.call("PUT", "/v1/policy", json=wanted, seconds=POLICY_SECONDS, repeatable=True))
