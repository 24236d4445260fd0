"""What may leave a sandbox, as E2B's SDKs say it: our policies decide, with E2B's precedence, and the answers say how it was understood."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.e2b.stage import OTHER, SHOP, Outside, Running

import e2b
from e2b import ALL_TRAFFIC, Sandbox


def _made(where: Running, **options: Any) -> Sandbox:
    return Sandbox.create(**options, **where.options)


def _reaches(sandbox: Sandbox, url: str) -> bool:
    command = f"curl -sk -o /dev/null --max-time 10 -w '%{{http_code}}' {url} || true"
    return str(sandbox.commands.run(command).stdout).strip() == "200"


def test_where_the_operator_permits_it_a_sandbox_reaches_everything_unless_told_otherwise(outside: Outside) -> None:
    with _made(outside.opened) as sandbox:
        assert sandbox.get_info().allow_internet_access
        assert _reaches(sandbox, f"https://{SHOP}/")
        sandbox.update_network({"allow_internet_access": False})
        assert not _reaches(sandbox, f"https://{SHOP}/"), "it holds when the call returns"
        assert sandbox.get_info().allow_internet_access is False
        sandbox.update_network({})
        assert _reaches(sandbox, f"https://{SHOP}/")
    with _made(outside.opened, allow_internet_access=False) as sandbox:
        assert not _reaches(sandbox, f"https://{SHOP}/")
        assert not _reaches(sandbox, f"https://{outside.place.address(SHOP)}/")


def test_where_the_operator_permits_nothing_the_tenants_policy_holds_and_the_answer_says_so(outside: Outside) -> None:
    where = outside.closed
    with _made(where, allow_internet_access=True) as sandbox:
        assert not _reaches(sandbox, f"https://{SHOP}/")
        head = {"X-API-KEY": where.key}
        said = httpx.get(f"{where.served.url}/sandboxes/{sandbox.sandbox_id}", headers=head).json()
        assert "does not permit" in said["egressPolicy"]
    with where.admin() as admin, where.ours() as ours:
        ours.set_policy("agents", {"version": 1, "rule": [{"host": SHOP}]})
        admin.set_tenant_policy("closed", None, default="agents")
    with _made(where) as sandbox:
        assert _reaches(sandbox, f"https://{SHOP}/")
        assert not _reaches(sandbox, f"https://{OTHER}/")


@pytest.mark.parametrize("which", ["opened", "closed"])
def test_what_is_allowed_beats_what_is_denied(outside: Outside, which: str) -> None:
    network = {"allow_out": [SHOP, f"{outside.place.address(OTHER)}/32"], "deny_out": [ALL_TRAFFIC]}
    with _made(getattr(outside, which), network=network) as sandbox:
        assert _reaches(sandbox, f"https://{SHOP}/")
        assert not _reaches(sandbox, f"https://{OTHER}/"), "a name is not its address"
        assert _reaches(sandbox, f"https://{outside.place.address(OTHER)}/")
        assert not _reaches(sandbox, f"https://{outside.place.address(SHOP)}/")
        info = sandbox.get_info()
        assert info.network["allow_out"] == network["allow_out"]
        sandbox.update_network({"allow_out": ["*.example.com"], "deny_out": lambda ctx: [ctx.all_traffic]})
        assert _reaches(sandbox, f"https://{SHOP}/")
        assert _reaches(sandbox, f"https://{OTHER}/")
        assert not _reaches(sandbox, f"https://{outside.place.address(OTHER)}/")
        sandbox.pause()
        with pytest.raises(e2b.SandboxException, match="409"):
            sandbox.update_network({})
    with pytest.raises(e2b.SandboxNotFoundException):
        sandbox.update_network({})


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"allow_out": [SHOP]}, "400: network.allowOut names a domain"),
        ({"deny_out": ["example.com"]}, "400: network.denyOut"),
        ({"deny_out": ["0.0.0.0"]}, "400: network.denyOut"),
        ({"allow_out": ["a b"], "deny_out": [ALL_TRAFFIC]}, "400: network.allowOut"),
        ({"deny_out": ["192.0.2.0/24"]}, "501: network.denyOut"),
        ({"egress_proxy": {"address": "proxy.example.com:1080"}}, "501: network.egressProxy"),
        ({"https_ports": [49983]}, "400: network.httpsPorts"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(outside: Outside, network: dict[str, Any], words: str) -> None:
    with pytest.raises(e2b.SandboxException, match=words):
        _made(outside.opened, network=network)
