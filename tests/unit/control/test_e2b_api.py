"""E2B's control API over a simulated node: the network becomes a policy, steps become a recipe, and every route is in the table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from space.control.e2b import images, recipes, table
from space.control.e2b.archives import Archives
from space.control.e2b.faults import NotHere
from space.control.e2b.forms import Network
from space.control.e2b.network import outgoing
from space.control.e2b.routes import ROUTES
from space.core.template.model import Run
from space.core.template.recipe import parse
from space.model.errors import InvalidArgument, NotFound
from space.testing.simcontrol import World, dialogue

ALL = "0.0.0.0/0"


def said(internet: bool | None = None, permits: tuple[str, ...] = ("open",), **network: Any) -> Any:
    return outgoing(msgspec.convert(network, Network) if network else None, internet, permits)


def test_every_route_is_in_the_table_and_every_route_of_the_table_is_there() -> None:
    shown = {route for one in table.OPERATIONS for route in one.routes}
    assert shown == {f"{route.method} {route.path}" for route in ROUTES}
    assert all(one.reason for one in table.OPERATIONS if one.state != "full")


# -- the network ---------------------------------------------------------------------------------------------------------------


def test_internet_access_is_open_where_it_is_permitted_and_the_tenants_policy_elsewhere() -> None:
    assert (said().policy, said().internet) == ({"version": 1, "open": True}, True)
    closed = said(permits=())
    assert (closed.policy, closed.internet) == (None, None)
    assert "does not permit" in closed.words
    for nothing in (said(False), said(denyOut=[ALL]), said(False, ())):
        assert (nothing.policy["rule"], nothing.policy["cidr"], nothing.internet) == ([], [], False)


def test_what_is_allowed_goes_out_whatever_is_denied() -> None:
    found = said(None, (), allowOut=["A.example.com", "*.b.example.com", "192.0.2.7", "198.51.100.0/24"], denyOut=[ALL, "192.0.2.0/24"])
    assert found.policy["cidr"] == ["192.0.2.7/32", "198.51.100.0/24"]
    assert {(rule["host"], rule.get("scheme", "https")) for rule in found.policy["rule"]} == {
        (host, scheme) for host in ("a.example.com", "*.b.example.com") for scheme in ("https", "http")
    }
    assert said(allowOut=["192.0.2.7"], denyOut=["192.0.2.7"]).policy == {"version": 1, "open": True}


@pytest.mark.parametrize(
    ("network", "fault"),
    [
        ({"allowOut": ["a.example.com"]}, InvalidArgument),
        ({"denyOut": ["a.example.com"]}, InvalidArgument),
        ({"denyOut": ["0.0.0.0"]}, InvalidArgument),
        ({"denyOut": ["192.0.2.0/24"]}, NotHere),
        ({"denyOut": ["2001:db8::/32"]}, NotHere),
        ({"dnsServers": ["192.0.2.1"]}, NotHere),
        ({"egressProxy": {"address": "a:1"}}, NotHere),
        ({"rules": {"*.example.com": [{"transform": {"headers": {"a": "b"}}}]}}, NotHere),
        ({"rules": {"a.example.com": [{"transform": {"headers": {"a b": "c"}}}]}}, InvalidArgument),
    ],
)
def test_what_has_no_meaning_here_is_refused(network: dict[str, Any], fault: type[Exception]) -> None:
    with pytest.raises(fault):
        said(**network)


def test_a_rule_is_a_grant_for_its_host_and_opens_nothing() -> None:
    rules = {
        "a.example.com": [{"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.TOKEN}"}}}],
        "b.example.com": [{"transform": {"headers": {"X-Team": "red"}}}],
    }
    found = said(rules=rules)
    assert [(one.host, one.header, one.template, one.secret, one.value) for one in found.loans] == [
        ("a.example.com", "authorization", "Bearer {}", "token", ""),
        ("b.example.com", "x-team", "{}", None, "red"),
    ]
    assert "red" not in repr(found)
    lent = found.lent({"a.example.com": "g1", "b.example.com": "g2"})
    assert lent is not None
    assert {(rule["host"], rule.get("scheme"), rule.get("grant")) for rule in lent["rule"]} == {
        ("a.example.com", None, "g1"), ("a.example.com", "http", None), ("b.example.com", None, "g2"), ("b.example.com", "http", None),
    }  # fmt: skip
    shut = said(rules=rules, allowOut=["a.example.com"], denyOut=[ALL])
    assert [one.host for one in shut.loans] == ["a.example.com"]


# -- builds --------------------------------------------------------------------------------------------------------------------


def _recipe(*steps: dict[str, Any], **more: Any) -> recipes.Made:
    asked = msgspec.convert({"steps": list(steps), **more}, recipes.BuildStart)
    return recipes.made(asked, base="base", user="", cwd="", memory_mib=1024, disk_mib=None)


def test_steps_go_by_what_stands_before_them() -> None:
    made = _recipe(
        {"type": "ENV", "args": ["A", "1", "B", 'two "\\\x7f ü']},
        {"type": "RUN", "args": ["make"]},
        {"type": "WORKDIR", "args": ["src"]},
        {"type": "USER", "args": ["root"]},
        {"type": "RUN", "args": ["install", "other"]},
        {"type": "COPY", "args": ["a.txt", "in/", "", ""], "filesHash": "a" * 64},
        startCmd="serve",
        readyCmd="true",
    )
    recipe = parse(made.text)
    runs = [step for step in recipe.steps if isinstance(step, Run)]
    assert made.indices == (2, 3, 4, 5, 6)
    assert made.archives == ("a" * 64,)
    assert [(run.user, run.cwd) for run in runs] == [
        ("user", "/home/user"), ("root", "/"), ("root", "/"), ("other", "/home/user/src"), ("root", "/"),
    ]  # fmt: skip
    assert runs[0].env == {"A": "1", "B": 'two "\\\x7f ü'}
    assert runs[-1].argv[-5:] == (f"/dev/shm/space-build/files/{'a' * 64}", "a.txt", "/home/user/src/in/", "root", "")
    assert (recipe.settings.user, recipe.settings.cwd, dict(recipe.settings.env)) == ("root", "/home/user/src", {})
    assert recipe.settings.start is not None
    assert recipe.settings.start[:3] == ("/usr/bin/env", "A=1", 'B=two "\\\x7f ü')


def test_a_forced_step_and_all_behind_it_are_done_anew() -> None:
    steps = ({"type": "RUN", "args": ["a"]}, {"type": "RUN", "args": ["b"], "force": True}, {"type": "RUN", "args": ["c"]})
    first, second = (parse(_recipe(*steps).text).steps for _ in range(2))
    assert [one == other for one, other in zip(first, second, strict=True)] == [True, False, False]


@pytest.mark.parametrize(
    "step", [{"type": "ADD", "args": ["a", "b"]}, {"type": "RUN"}, {"type": "ENV", "args": ["A"]}, {"type": "COPY", "args": ["a", "b"]}]
)
def test_what_is_no_step_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        _recipe(step)


def test_images_are_found_in_their_spellings() -> None:
    known = images.load(None)
    for image in ("e2bdev/base", "e2bdev/base:latest", "docker.io/library/debian:12", "python:3.11"):
        assert images.template(known, image) == "base"
    assert images.template(known, "nowhere.example.com/x:1") is None


@dialogue()
async def test_an_archive_is_kept_whole_and_a_tenants_own(world: World) -> None:
    assert world.services is not None
    archives: Archives = world.services.e2b.building.archives
    headers = {"Authorization": f"Bearer {world.key}"}
    link = (await world.client.get(f"/templates/x/files/{'c' * 64}", headers=headers)).json()
    assert not link["present"]
    assert (await world.client.put(link["url"], content=b"bytes", headers={"Authorization": ""})).status_code == 200
    assert archives.has("default", "c" * 64)
    assert not archives.has("other", "c" * 64)
    assert (await world.client.put(link["url"].replace("default", "other"), content=b"x")).status_code == 401
    packed = b"".join([piece async for piece in archives.stream("default", ["c" * 64])])
    assert b"files/" + b"c" * 64 in packed
    assert len(packed) % 512 == 0
    with pytest.raises(NotFound):
        archives.size("other", "c" * 64)
    with pytest.raises(InvalidArgument):
        archives.has("default", "../x")


@dialogue()
async def test_what_is_not_here_says_so_in_their_form(world: World) -> None:
    for method, path in (("POST", "/volumes"), ("GET", "/teams"), ("DELETE", "/volumes/x")):
        answer = await world.client.request(method, path)
        assert answer.status_code == 501
        assert answer.json()["code"] == 501
        assert answer.headers["should-retry"] == "false"
    wrong = await world.client.post("/v2/sandboxes", json={"templateID": 1})
    assert (wrong.status_code, wrong.json()["code"]) == (400, 400)
    assert (await world.client.post("/v2/sandboxes", json={"templateID": "base"}, headers={"Authorization": "Bearer no"})).json()[
        "code"
    ] == 401


@dialogue(tenant_sandboxes=1)
async def test_a_quota_is_a_limit_that_waiting_does_not_help(world: World) -> None:
    first = await world.client.post("/v2/sandboxes", json={"templateID": "base"})
    assert first.status_code == 201, first.text
    over = await world.client.post("/v2/sandboxes", json={"templateID": "base"})
    assert (over.status_code, over.json()["code"], over.headers["should-retry"]) == (429, 429, "false")
