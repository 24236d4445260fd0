"""A request is for exactly one place, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.wire.http1 import BadHead, RequestHead
from space.ingress.routing import BadRoute, Target, ToControl, ToPort, route

ID = "i" + "a2" * 10
DOMAIN = "boxes.example.com"
BY_HEADERS = f"e2b-sandbox-id: {ID}\r\ne2b-sandbox-port: 8080"


def head(host: str, *fields: str, target: str = "/x", method: str = "GET") -> RequestHead:
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", *fields, "", ""]
    return RequestHead.parse("\r\n".join(lines).encode("latin-1"))


@pytest.mark.parametrize(
    ("host", "fields", "domain", "found"),
    [
        (f"8080-{ID}.{DOMAIN}", "", DOMAIN, ToPort(ID, 8080, by_host=True)),
        (f"8080-{ID}.{DOMAIN}:7071", "", DOMAIN, ToPort(ID, 8080, by_host=True)),
        (f"8080-{ID}.{DOMAIN}".upper().replace(ID.upper(), ID), "", DOMAIN, ToPort(ID, 8080, by_host=True)),
        (f"8080-{ID}.localhost:7071", "", "", ToPort(ID, 8080, by_host=True)),
        (f"8080-{ID}.{DOMAIN}", BY_HEADERS, DOMAIN, ToPort(ID, 8080, by_host=True)),
        (f"8080-{ID}.{DOMAIN}", "e2b-traffic-access-token: t0", DOMAIN, ToPort(ID, 8080, "t0", by_host=True)),
        (f"49983-{ID}.{DOMAIN}", "", DOMAIN, ToControl(envd=True, sandbox=ID, by_host=True)),
        (f"sandbox.{DOMAIN}", BY_HEADERS, DOMAIN, ToPort(ID, 8080)),
        ("localhost:7071", BY_HEADERS, DOMAIN, ToPort(ID, 8080)),
        ("127.0.0.1:7071", BY_HEADERS, "", ToPort(ID, 8080)),
        ("[::1]:7071", BY_HEADERS, "", ToPort(ID, 8080)),
        ("localhost", f"E2b-Sandbox-Id: {ID}-client0\r\nE2b-Sandbox-Port: 80", "", ToPort(ID, 80)),
        ("localhost", f"E2b-Sandbox-Id: sb-{ID[1:]}\r\nE2b-Sandbox-Port: 80", "", ToPort(ID, 80)),
        ("localhost", f"E2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: 49983", "", ToControl(envd=True, sandbox=ID)),
        (f"api.{DOMAIN}", "", DOMAIN, ToControl()),
    ],
)  # fmt: skip
def test_a_request_is_for_what_it_names(host: str, fields: str, domain: str, found: Target) -> None:
    assert route(head(host, *filter(None, fields.split("\r\n"))), domain) == found


@pytest.mark.parametrize(
    ("host", "fields", "domain"),
    [
        ("evil.example.com", BY_HEADERS, DOMAIN),  # a name that was rebound to us
        ("evil.example.com", BY_HEADERS, ""),
        (DOMAIN, BY_HEADERS, DOMAIN),
        (f"8080-{ID}.{DOMAIN}.evil.example.com", "", DOMAIN),
        (f"8080-{ID}.evil{DOMAIN}", "", DOMAIN),
        (f"x.8080-{ID}.{DOMAIN}", "", DOMAIN),
        (f"8080-{ID}.x.{DOMAIN}", "", DOMAIN),
        (f"0-{ID}.{DOMAIN}", "", DOMAIN),
        (f"65536-{ID}.{DOMAIN}", "", DOMAIN),
        (f"123456-{ID}.{DOMAIN}", "", DOMAIN),
        (f"-{ID}.{DOMAIN}", "", DOMAIN),
        (f"8080-.{DOMAIN}", "", DOMAIN),
        (f"8080-{ID}.{DOMAIN}.", "", DOMAIN),
        (f"8080-{ID}.{DOMAIN}", f"e2b-sandbox-id: i{'b3' * 10}\r\ne2b-sandbox-port: 8080", DOMAIN),  # two names for one request
        (f"8080-{ID}.{DOMAIN}", f"e2b-sandbox-id: {ID}\r\ne2b-sandbox-port: 8081", DOMAIN),
        (f"8080-{ID}.{DOMAIN}", f"e2b-sandbox-id: {ID}", DOMAIN),
        ("localhost", f"{BY_HEADERS}\r\ne2b-sandbox-id: {ID}", ""),
        ("localhost", f"{BY_HEADERS}\r\ne2b-sandbox-port: 8080", ""),
        ("localhost", f"{BY_HEADERS}\r\ne2b-traffic-access-token: a\r\ne2b-traffic-access-token: b", ""),
        ("localhost", "e2b-sandbox-id: ../../x\r\ne2b-sandbox-port: 80", ""),
        ("localhost", f"e2b-sandbox-id: {ID}\r\ne2b-sandbox-port: +80", ""),
        ("localhost", f"e2b-sandbox-id: {ID}\r\ne2b-sandbox-port: 0080000", ""),
        ("localhost", "", ""),
        ("api.localhost", "", ""),
        ("user@localhost", BY_HEADERS, ""),
        ("localhost:99999", BY_HEADERS, ""),
        ("127.0.0.1 localhost", BY_HEADERS, ""),
        ("[127.0.0.1]", BY_HEADERS, ""),
        ("", BY_HEADERS, ""),
    ],
)
def test_what_names_nothing_or_two_things_is_refused(host: str, fields: str, domain: str) -> None:
    with pytest.raises((BadRoute, BadHead)):
        route(head(host, *filter(None, fields.split("\r\n"))), domain)


@pytest.mark.parametrize("target", ["http://api.boxes.example.com/v2/sandboxes", "*", "api.boxes.example.com:443", "//"])
def test_a_target_that_names_a_host_of_its_own_is_refused(target: str) -> None:
    if target == "//":
        assert isinstance(route(head("localhost", *BY_HEADERS.split("\r\n"), target=target), DOMAIN), ToPort)  # a path, and goes on as one
        return
    with pytest.raises(BadRoute):
        route(head("localhost", *BY_HEADERS.split("\r\n"), target=target), DOMAIN)


def test_what_control_handed_over_is_never_for_control() -> None:
    for host in ("localhost", f"api.{DOMAIN}", f"sandbox.{DOMAIN}", "space.example.com", "10.1.2.3"):
        assert route(head(host, *BY_HEADERS.split("\r\n")), DOMAIN, relayed=True) == ToPort(ID, 8080)
        with pytest.raises(BadRoute):
            route(head(host), DOMAIN, relayed=True)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=80))
def test_no_host_but_one_below_the_domain_reaches_control(host: str) -> None:
    try:
        found = route(head(host), DOMAIN)
    except (BadRoute, BadHead):
        return
    assert not isinstance(found, ToControl) or host.lower().partition(":")[0].endswith("." + DOMAIN)
