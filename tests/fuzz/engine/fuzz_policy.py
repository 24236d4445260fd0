"""Policies as text, and policy documents: mistakes with their places or rules that hold what they say; nothing above narrows to nothing."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from typing import Any

from tests.fuzz.engine.guided import Target

from space.core.policy import document, loader, names, paths, verdict
from space.core.policy.difference import difference
from space.core.policy.loader import PolicyRefused
from space.core.policy.verdict import Allow, Asked, Layer, Stack


def fuzz_policy(data: bytes) -> None:
    try:
        content = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, ValueError):
        _document(data)
        return
    _loaded(content)
    with suppress(document.DocumentRefused):
        made = document.compose({"sandbox": content, "operator": {"version": 1, "open": True}})
        assert document.read(made).digest == document.digest(made)
        _document(made)


def _document(data: bytes) -> None:
    with suppress(document.DocumentRefused):
        found = document.read(data)
        assert found.stack.layers
        _asked(found.stack)
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
        if isinstance(content, dict):
            _loaded(content)


def _loaded(content: dict[str, Any]) -> None:
    try:
        loaded = loader.load(content, presets={"pip": ()}, bundles=frozenset({"own"}))
    except PolicyRefused as refused:
        if not refused.notes or not all(note.path and note.message for note in refused.notes):
            raise AssertionError(f"a mistake without place or words: {refused.notes}") from None
        return
    policy = loaded.policy
    for rule in policy.rules:
        assert names.canon(rule.host.suffix) == rule.host.suffix
        assert "." in rule.host.suffix
        assert 1 <= rule.port <= 65_535
        assert rule.grant is None or (rule.scheme == "https" and not rule.host.wildcard)
    for mode in ("enforce", "ask"):
        if policy.mode == mode and not policy.open and not policy.rules:
            assert not isinstance(Stack([Layer(policy)]).name("nobody.example.com"), Allow) or mode == "ask"
    assert not difference(policy, policy).widens
    _asked(Stack([Layer(loader.load({"version": 1}).policy), Layer(policy)]), nothing=True)
    _asked(Stack([Layer(policy)]))


def _asked(stack: Stack, *, nothing: bool = False) -> None:
    for name in ("a.example.com", "b.a.example.com", "example.org"):
        for port in (80, 443, 5432):
            for target in (b"/simple/x/", b"/a%2Fb", b"/"):
                found = [stack.name(name), stack.flow(name, port)]
                scheme = "https" if port == 443 else "http"
                found.append(stack.request(Asked(name, port, scheme, "GET", paths.normalise(target))))  # type: ignore[arg-type]
                assert not nothing or not any(isinstance(one, Allow) for one in found)
                if not isinstance(found[1], Allow):
                    assert not isinstance(found[2], Allow)


_TOML = (
    b'version = 1\nmode = "enforce"\n[[rule]]\nhost = "a.example.com"\nmethods = ["GET", "HEAD"]\npaths = ["/simple/**"]\n',
    b'version = 1\nopen = true\ncidr = ["192.0.2.0/24:5432"]\npresets = ["pip"]\n[[rule]]\ntcp = "db.example.com:5432"\nname = "db"\n',
    (
        b'version = 1\nmode = "record"\n[[rule]]\nhost = "*.example.com"\nscheme = "http"\nport = 8080\nwebsocket = true\nask = true\n'
        b'sent_limit = 5\n[[rule]]\npassthrough = "p.example.com"\n[[rule]]\nhost = "a.example.com"\ngrant = "g"\nca = "own"\n'
        b'foreign_credentials = "refuse"\nreceived_limit = 0\n'
    ),
    b'{"version":1,"rule":[{"host":"a.example.com"}]}',
    document.compose({"sandbox": {"version": 1, "rule": [{"host": "a.example.com"}]}, "operator": {"version": 1, "open": True}}),
)
_TOML_WORDS = (
    b"version = 1\n",
    b"[[rule]]\n",
    b'host = "',
    b'"*."',
    b"*.",
    b'tcp = "',
    b'passthrough = "',
    b"port = 0\n",
    b"paths = []\n",
    b'["/**"]',
    b"/*/",
    b"methods = [1]\n",
    b'"TRACE"',
    b'mode = "ask"\n',
    b"open = 1\n",
    b'cidr = ["0.0.0.0/0"]\n',
    b'"com"',
    b'"co.uk"',
    b'"\xc3\xa4.example"',
    b"xn--",
    b"\\u0000",
    b"1_000",
    b"inf",
    b"nan",
    b"1979-05-27",
    b'{"version":1,',
    b"[[[[",
    b"0x7f.1",
    b"%2f",
    b"/../",
    b"true",
    b"-1",
    b"99999999999999999999",
)

TARGET = Target("policy", (loader, document, names, paths, verdict), fuzz_policy, _TOML, _TOML_WORDS)
