"""Policies from the API down to a real guest: what a sandbox's policy allows has an address there, and a change is live."""

from __future__ import annotations

from space.sdk import Client, Sandbox

ALLOWED, OTHER = "allowed.example.com", "other.example.com"


def addresses(sandbox: Sandbox, name: str) -> str:
    """What the guest's own resolver says; empty where it says nothing."""
    return sandbox.run(["getent", "ahostsv4", name], timeout=20).text


def policy(name: str) -> dict[str, object]:
    return {"version": 1, "rule": [{"host": name}]}


def test_a_policy_given_at_create_holds_and_another_one_is_live(client: Client) -> None:
    with Sandbox.create(client=client, policy=policy(ALLOWED), ttl_seconds=300) as sandbox:
        assert sandbox.policy().status.state == "applied"
        assert addresses(sandbox, ALLOWED).startswith("198.1")
        assert addresses(sandbox, OTHER) == ""
        told = sandbox.set_policy(policy(OTHER)).status
        assert (told.state, told.applied_generation) == ("applied", told.generation)
        assert (addresses(sandbox, OTHER)[:5], addresses(sandbox, ALLOWED)) == ("198.1", "")
        assert sandbox.set_policy(None).status.state == "applied"
        assert addresses(sandbox, OTHER) == ""
