"""What the settings of egress mean."""

from __future__ import annotations

import pytest

from space.config import egress
from space.core.policy.names import canon
from space.model.errors import InvalidArgument


def test_token_endpoints_are_https_by_name() -> None:
    found = egress.token_endpoints(["mail=https://auth.example.com/token", "b.2=https://AUTH2.example.com:8443?tenant=1"])
    assert found == {
        "mail": egress.Endpoint("auth.example.com", 443, "/token"),
        "b.2": egress.Endpoint("auth2.example.com", 8443, "/?tenant=1"),
    }
    assert all(canon(one.host) == one.host for one in found.values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://auth.example.com/token",
        "Mail=https://auth.example.com/token",
        "mail=http://auth.example.com/token",
        "mail=https://user:pass@auth.example.com/token",
        "mail=https://auth.example.com/token#part",
        "mail=https://192.0.2.1/token",
        "mail=https://[2001:db8::1]/token",
        "mail=https:///token",
        "mail=https://auth.example.com:0/token",
        "mail=https://auth.example.com:99999/token",
        "mail=https://auth.example.com/to ken",
        "mail=https://auth.example.com/t\r\nx: y",
        "mail=https://localhost/token",
        "mail=https://a..example.com/",
    ],
)
def test_what_is_no_token_endpoint_is_refused_without_its_url(text: str) -> None:
    with pytest.raises(InvalidArgument, match="token_endpoints") as refused:
        egress.token_endpoints([text])
    assert "pass" not in str(refused.value)


def test_a_token_endpoint_is_named_once() -> None:
    with pytest.raises(InvalidArgument, match="twice"):
        egress.token_endpoints(["a=https://a.example.com/", "a=https://b.example.com/"])
