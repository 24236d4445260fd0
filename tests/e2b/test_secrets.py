"""Secrets and header transforms through E2B's SDKs: the broker keeps them, requests get them on the way, guests never see them."""

from __future__ import annotations

import time
import uuid

import pytest
from tests.e2b.stage import OTHER, SHOP, Js, Outside, Running

import e2b
from e2b import ALL_TRAFFIC, Sandbox, Secret


def _name() -> str:
    return f"SECRET_{uuid.uuid4().hex[:8]}"


def test_a_secret_is_made_seen_turned_and_forgotten_and_never_told(server: Running) -> None:
    name = _name()
    made = Secret.create(name, "first value", metadata={"team": "a"})
    assert (made.name, made.version, made.metadata) == (name, 1, {"team": "a"})
    assert Secret.exists(name)
    assert Secret.exists(made.secret_id)
    turned = Secret.update(name, "second value")
    assert (turned.version, turned.metadata) == (2, {"team": "a"})
    assert "value" not in str(Secret.get_info(name))
    assert name in [one.name for one in Secret.list().next_items()]
    with pytest.raises(e2b.SecretException, match="409"):
        Secret.create(name, "third")
    assert Secret.destroy(name)
    assert not Secret.destroy(name)
    assert not Secret.exists(name)
    with pytest.raises(e2b.SecretNotFoundException):
        Secret.get_info(name)
    with pytest.raises(e2b.SecretException, match="400"):
        Secret.create("no name!", "x")


def test_javascript_makes_and_forgets_secrets(server: Running, js: Js) -> None:
    said = js("""
        const { Secret } = e2b
        const made = await Secret.create(given.name, 'a value', { metadata: { team: 'b' } })
        const turned = await Secret.update(given.name, 'another')
        const known = [made.name, made.version, turned.version, await Secret.exists(given.name)]
        return [...known, await Secret.destroy(given.name), await Secret.destroy(given.name), await Secret.exists(given.name)]
    """, name=(name := _name()))  # fmt: skip
    assert said == [name, 1, 2, True, True, False, False]


def _curl(sandbox: Sandbox, url: str) -> str:
    return str(sandbox.commands.run(f"curl -s --max-time 10 -H 'authorization: mine' {url} || true").stdout)


def test_a_header_gets_a_secret_on_the_way_to_its_host_alone(outside: Outside) -> None:
    where, value = outside.opened, f"value-{uuid.uuid4().hex}"
    name = _name()
    Secret.create(name, value, **where.options)
    rules = {SHOP: [{"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets." + name + "}"}}}]}
    with Sandbox.create(network={"rules": rules}, **where.options) as sandbox:
        seen = len(outside.heads)
        assert value not in _curl(sandbox, f"https://{SHOP}/"), "also an echo is covered"
        assert f"authorization: bearer {value}" in outside.heads[-1].decode().lower()
        assert len(outside.heads) == seen + 1
        _curl(sandbox, f"https://{OTHER}/")
        assert value not in outside.heads[-1].decode()
        assert value not in sandbox.commands.run("env").stdout
        with where.ours() as ours:
            assert [one.secret for one in ours.grants()] == [name.lower()]
        sandbox.update_network({})
        _curl(sandbox, f"https://{SHOP}/")
        assert value not in outside.heads[-1].decode(), "a rule that is taken back is over at once"
        with where.ours() as ours:
            assert not list(ours.grants())
    assert Secret.destroy(name, **where.options)


def test_a_value_that_is_written_in_the_rule_is_kept_as_a_secret_until_the_sandbox_ends(outside: Outside) -> None:
    where = outside.closed
    network = {
        "allow_out": [SHOP],
        "deny_out": [ALL_TRAFFIC],
        "rules": {SHOP: [{"transform": {"headers": {"X-Team": "the-value-of-a-team"}}}]},
    }
    with Sandbox.create(network=network, **where.options) as sandbox:
        _curl(sandbox, f"https://{SHOP}/")
        assert b"x-team: the-value-of-a-team" in outside.heads[-1].lower()
        assert not Secret.list(**where.options).next_items(), "what was made for one sandbox is nobody's secret"
    deadline = time.monotonic() + 10
    with where.ours() as ours:
        while [one.name for one in ours.grants()] or [one.name for one in ours.secrets()]:
            assert time.monotonic() < deadline, "nothing of it is left"
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"*.example.com": [{"transform": {"headers": {"a": "b"}}}]}, "501"),
        ({SHOP: [{"transform": {"headers": {"a": "b", "c": "d"}}}]}, "501"),
        ({SHOP: [{"transform": {"headers": {"a": "${e2b.secrets.nobodys}"}}}]}, "404"),
        ({SHOP: [{"transform": {"headers": {"a": "${e2b.identity.tokens.t}"}}}]}, "501"),
        ({"no host": [{"transform": {"headers": {"a": "b"}}}]}, "400"),
    ],
)
def test_rules_that_cannot_be_are_refused_and_leave_nothing(outside: Outside, rules: dict[str, object], words: str) -> None:
    where = outside.opened
    with pytest.raises(e2b.SandboxException, match=words):
        Sandbox.create(network={"rules": rules}, **where.options)
    with where.ours() as ours:
        assert not list(ours.grants())
