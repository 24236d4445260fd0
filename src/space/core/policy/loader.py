"""A policy from plain data (TOML or JSON, decoded): strict, with the path of every mistake and a hint, and warnings for what is risky.

version = 1
mode = "enforce"                                   # or record, ask
open = false
cidr = ["192.0.2.0/24:5432"]

[[rule]]
host = "example.com"                               # or "*.example.com": exactly one more label
methods = ["GET", "HEAD"]
paths = ["/simple/**"]

[[rule]]
tcp = "db.example.com:5432"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, get_args

from space.core.policy.model import PORTS, Block, Mode, Policy, Rule, Scheme
from space.core.policy.names import NameRefused, Pattern, pattern
from space.core.policy.paths import PathPattern
from space.core.policy.suffixes import is_public_suffix

VERSION = 1
MOST_RULES = 20_000
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}\Z")
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
_NETWORK = re.compile(r"[0-9.]+(/[0-9]{1,2})?\Z")
_NETWORKS = "such as 192.0.2.0/24 or 192.0.2.7/32:5432"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}\Z")
_GRANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_TOP = frozenset({"version", "mode", "open", "cidr", "rule", "presets"})
_RULE = frozenset(
    {"name", "host", "port", "scheme", "tcp", "passthrough", "methods", "paths", "websocket", "grant", "ask", "foreign_credentials"}
    | {"sent_limit", "received_limit", "ca"}
)
_OF_REQUESTS = ("methods", "paths", "websocket", "grant", "ask", "foreign_credentials")
# Labels of hosts that fetch, publish or relay on a caller's behalf: what is allowed to them is allowed to whoever reads there.
_CAPABLE = frozenset(
    {"upload", "uploads", "gist", "paste", "pastebin", "webhook", "webhooks", "hooks", "translate", "proxy", "cors", "archive", "cache"}
    | {"tunnel", "ngrok", "relay", "forms", "storage", "s3", "blob", "telemetry", "collect", "log", "logs", "sentry", "api"}
)
_WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a policy. path: where, such as `rule[3].paths[0]`. hint: what to do, or empty."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class PolicyRefused(ValueError):
    """A policy with mistakes: all of them, in the order of the file."""

    def __init__(self, notes: Sequence[Note]) -> None:
        super().__init__("; ".join(map(str, notes)))
        self.notes = tuple(notes)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy, and what whoever writes it should know."""

    policy: Policy
    warnings: tuple[Note, ...]


def load(
    data: Mapping[str, Any],
    *,
    name: str = "policy",
    presets: Mapping[str, tuple[Rule, ...]] | None = None,
    bundles: frozenset[str] = frozenset(),
    public_suffix: Callable[[str], bool] = is_public_suffix,
) -> Loaded:
    """The policy. PolicyRefused with every mistake.

    presets: rules that a policy takes over by name (`presets = ["pip"]`). bundles: names that `ca` may have.
    """
    return _Loader(name, presets or {}, bundles, public_suffix).load(data)


class _Loader:
    def __init__(
        self, name: str, presets: Mapping[str, tuple[Rule, ...]], bundles: frozenset[str], public_suffix: Callable[[str], bool]
    ) -> None:
        self._name = name
        self._presets = presets
        self._bundles = bundles
        self._public_suffix = public_suffix
        self._mistakes: list[Note] = []
        self._warnings: list[Note] = []

    def load(self, data: Mapping[str, Any]) -> Loaded:
        self._known(data, _TOP, "")
        if type(data.get("version")) is not int or data["version"] != VERSION:  # neither true nor 1.0
            self._wrong("version", f"{data.get('version')!r} is not {VERSION}", f"write version = {VERSION}")
        mode = self._choice(data, "mode", "", get_args(Mode), "enforce")
        is_open = self._flag(data, "open", "")
        if is_open:
            self._warn("open", "every public host may be reached: the policy contains nothing but addresses that are not public")
        if mode == "record":
            self._warn("mode", "what no rule allows is let through and recorded", "for templates under construction alone")
        rules: list[Rule] = []
        taken: set[str] = set()
        for at, preset in enumerate(self._list(data, "presets", "")):
            found = self._presets.get(preset) if isinstance(preset, str) else None
            if found is None:
                self._wrong(f"presets[{at}]", f"there is no preset {preset!r}", "known: " + (", ".join(sorted(self._presets)) or "none"))
            elif preset in taken:  # and not only a slip: each would bring all of its rules again
                self._wrong(f"presets[{at}]", f"{preset!r} stands here twice")
            else:
                taken.add(preset)
                rules += found
        given = self._list(data, "rule", "")
        if len(given) > MOST_RULES:
            self._wrong("rule", f"{len(given)} rules, at most {MOST_RULES} are possible")
            given = []
        for at, row in enumerate(given):
            rule = self._rule(row, f"rule[{at}]")
            if rule is not None:
                rules.append(rule)
        if len(rules) > MOST_RULES and not self._mistakes:
            self._wrong("presets", f"{len(rules)} rules with those of the presets, at most {MOST_RULES} are possible")
        blocks = [block for at, text in enumerate(self._list(data, "cidr", "")) if (block := self._block(text, f"cidr[{at}]")) is not None]
        self._consistent(rules)
        if self._mistakes:
            raise PolicyRefused(self._mistakes)
        return Loaded(Policy(self._name, tuple(rules), tuple(blocks), is_open, mode), tuple(self._warnings))

    # -- one rule ----------------------------------------------------------------------------------------------------

    def _rule(self, row: Any, path: str) -> Rule | None:
        if not isinstance(row, Mapping):
            self._wrong(path, f"a rule is a table, not {type(row).__name__}")
            return None
        before = len(self._mistakes)
        self._known(row, _RULE, path)
        host, port, scheme = self._where(row, path)
        if scheme not in ("https", "http"):
            for key in _OF_REQUESTS:
                if key in row:
                    self._wrong(f"{path}.{key}", f"requests of a {scheme} rule are not seen", "use scheme https, or leave it out")
        methods = self._methods(row, path)
        paths = self._paths(row, path)
        grant = self._word(row, "grant", path, _GRANT)
        if grant is not None and scheme == "http":
            self._wrong(f"{path}.grant", "a credential never goes over plain HTTP", "use scheme https")
        if grant is not None and host is not None and host.wildcard:
            self._wrong(f"{path}.grant", "a credential is for one host, not for a wildcard", "name the host")
        ca = self._word(row, "ca", path, _NAME)
        if ca is not None and ca not in self._bundles:
            self._wrong(f"{path}.ca", f"there is no bundle {ca!r}", "known: " + (", ".join(sorted(self._bundles)) or "none"))
        rule = Rule(
            name=self._word(row, "name", path, _NAME) or path,
            host=host or Pattern("invalid"),
            port=port,
            scheme=scheme,
            methods=methods,
            paths=paths,
            websocket=self._flag(row, "websocket", path),
            grant=grant,
            ask=self._flag(row, "ask", path),
            foreign=self._choice(row, "foreign_credentials", path, ("forward", "refuse"), "forward"),
            sent_limit=self._number(row, "sent_limit", path, 0, 2**53),
            received_limit=self._number(row, "received_limit", path, 0, 2**53),
            ca=ca,
        )
        if len(self._mistakes) > before:
            return None
        self._consider(rule, path)
        return rule

    def _where(self, row: Mapping[str, Any], path: str) -> tuple[Pattern | None, int, Scheme]:
        ways = [key for key in ("host", "tcp", "passthrough") if key in row]
        if len(ways) != 1:
            self._wrong(path, "a rule has exactly one of host, tcp and passthrough")
            return None, 0, "https"
        way = ways[0]
        text = row[way]
        if not isinstance(text, str):
            self._wrong(f"{path}.{way}", f"a host's name is text, not {type(text).__name__}")
            return None, 0, "https"
        if way == "host":
            scheme: Scheme = self._choice(row, "scheme", path, ("https", "http"), "https")
            port = self._number(row, "port", path, 1, 65535)
            return self._host(text, f"{path}.host"), PORTS[scheme] if port is None else port, scheme
        for key in ("scheme", "port"):
            if key in row:
                self._wrong(f"{path}.{key}", f"a {way} rule says it as {way} = 'host:port'")
        name, colon, digits = text.rpartition(":")
        if not colon and way == "passthrough":
            name, digits = text, "443"
        if _port(digits) is None:
            fault = f"{digits!r} is no port from 1 to 65535" if colon else f"{text!r} has no port"
            self._wrong(f"{path}.{way}", fault, f"write {way} = 'host:port'")
            return None, 0, "tcp" if way == "tcp" else "passthrough"
        return self._host(name, f"{path}.{way}"), int(digits), "tcp" if way == "tcp" else "passthrough"

    def _host(self, text: str, path: str) -> Pattern | None:
        try:
            found = pattern(text)
        except NameRefused as refused:
            hint = "addresses go under cidr" if refused.fault == "address" else "a name without scheme, port or path"
            self._wrong(path, str(refused), hint)
            return None
        if self._public_suffix(found.suffix):
            whole = "every name below it" if found.wildcard else "nobody's name"
            self._wrong(path, f"{found.suffix!r} is a public suffix: it stands for {whole}", "name the hosts themselves")
            return None
        return found

    def _methods(self, row: Mapping[str, Any], path: str) -> frozenset[str] | None:
        if "methods" not in row:
            return None
        found = self._list(row, "methods", path)
        if row["methods"] == []:
            self._wrong(f"{path}.methods", "an empty list allows nothing", "leave it out to allow all")
        for at, method in enumerate(found):
            where = f"{path}.methods[{at}]"
            if not isinstance(method, str) or not _METHOD.match(method):
                self._wrong(where, f"{method!r} is no method", "methods are upper case, such as GET")
            elif method in ("TRACE", "TRACK", "CONNECT"):
                self._wrong(where, f"{method} is never let out")
        return frozenset(method for method in found if isinstance(method, str))

    def _paths(self, row: Mapping[str, Any], path: str) -> tuple[PathPattern, ...] | None:
        if "paths" not in row:
            return None
        given = self._list(row, "paths", path)
        if row["paths"] == []:
            self._wrong(f"{path}.paths", "an empty list allows nothing", "leave it out to allow all")
        found = []
        for at, text in enumerate(given):
            try:
                found.append(PathPattern.parse(text if isinstance(text, str) else ""))
            except ValueError as error:
                self._wrong(f"{path}.paths[{at}]", f"{text!r}: {error}")
        return tuple(found)

    def _block(self, text: Any, path: str) -> Block | None:
        if not isinstance(text, str):
            self._wrong(path, f"a network is text, not {text!r}", _NETWORKS)
            return None
        network, colon, digits = text.partition(":")
        port = _port(digits) if colon else None
        if ":" in digits:
            self._wrong(path, f"{text!r} is no network of IPv4, and a guest has no other addresses", _NETWORKS)
            return None
        try:
            if not _NETWORK.match(network):  # a mask is read in two ways
                raise ValueError("an address, or an address and a number of bits")
            block = Block(path, IPv4Network(network), None if port is None else frozenset({port}))
        except ValueError as error:
            self._wrong(path, f"{text!r} is no network: {error}", _NETWORKS)
            return None
        if colon and port is None:
            self._wrong(path, f"{digits!r} is no port from 1 to 65535", _NETWORKS)
            return None
        if block.network.prefixlen < 8:
            self._warn(path, f"{block.network} is a large part of all addresses")
        return block

    # -- what holds between rules, and what is risky -----------------------------------------------------------------------

    def _consistent(self, rules: Sequence[Rule]) -> None:
        schemes: dict[tuple[str, int], Rule] = {}
        names: set[str] = set()
        for rule in rules:
            first = schemes.setdefault((str(rule.host), rule.port), rule)
            if first.scheme != rule.scheme:
                said = f"{rule.host}:{rule.port} is {rule.scheme} here and {first.scheme} in {first.name}"
                self._wrong(rule.name, said, "a port of a host speaks one of them")
            if rule.name in names and not rule.name.startswith("rule["):
                self._wrong(rule.name, "two rules have this name")
            names.add(rule.name)
        for rule in rules:
            if rule.host.wildcard:
                continue
            above = schemes.get((f"*.{rule.host.suffix.partition('.')[2]}", rule.port))
            if above is not None and above.scheme != rule.scheme:
                said = f"{rule.host}:{rule.port} is {rule.scheme} here and {above.scheme} by {above.host} in {above.name}"
                self._wrong(rule.name, said, "a port of a host speaks one of them")

    def _consider(self, rule: Rule, path: str) -> None:
        foreign = [label for label in str(rule.host).split(".") if label.startswith("xn--")]
        if foreign:  # as it is compared: what a reader sees may be one letter of another script away from another name
            self._warn(path, f"an international name: it stands for {rule.host} and no other", "compare that with what was meant")
        capable = sorted(_CAPABLE & set(str(rule.host).split(".")))
        writes = rule.methods is None or rule.methods & _WRITING
        if rule.scheme == "passthrough":
            self._warn(path, "TLS to this host is not looked into: no method, path or credential rule holds, only the name")
        elif rule.scheme == "tcp":
            self._warn(path, "an opaque stream: whatever the protocol can do is allowed")
        elif capable and writes:
            self._warn(path, f"{rule.host} looks like a host that acts for its callers ({', '.join(capable)})", "narrow methods and paths")
        elif writes and rule.paths is None and rule.host.wildcard:
            self._warn(path, f"anything may be sent to every host of {rule.host}", "narrow methods or paths")

    # -- fields ------------------------------------------------------------------------------------------------------------

    def _wrong(self, path: str, message: str, hint: str = "") -> None:
        self._mistakes.append(Note(path, message, hint))

    def _warn(self, path: str, message: str, hint: str = "") -> None:
        self._warnings.append(Note(path, message, hint))

    def _known(self, row: Mapping[str, Any], known: frozenset[str], path: str) -> None:
        for key in row:
            if key not in known:
                self._wrong((f"{path}.{key}" if path else key) or '""', "unknown", "known: " + ", ".join(sorted(known)))

    def _list(self, row: Mapping[str, Any], key: str, path: str) -> list[Any]:
        value = row.get(key, [])
        if isinstance(value, list):
            return value
        self._wrong(f"{path}.{key}".lstrip("."), f"a list, not {type(value).__name__}")
        return []

    def _flag(self, row: Mapping[str, Any], key: str, path: str) -> bool:
        value = row.get(key, False)
        if not isinstance(value, bool):
            self._wrong(f"{path}.{key}".lstrip("."), f"true or false, not {value!r}")
        return value is True

    def _number(self, row: Mapping[str, Any], key: str, path: str, least: int, most: int) -> int | None:
        value = row.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
            return value
        self._wrong(f"{path}.{key}", f"a whole number from {least} to {most}, not {value!r}")
        return None

    def _word(self, row: Mapping[str, Any], key: str, path: str, shape: re.Pattern[str]) -> str | None:
        value = row.get(key)
        if value is None or (isinstance(value, str) and shape.match(value)):
            return value
        self._wrong(f"{path}.{key}", f"{value!r} is no name for it", f"it looks like {shape.pattern}")
        return None

    def _choice(self, row: Mapping[str, Any], key: str, path: str, choices: Sequence[str], default: Any) -> Any:
        value = row.get(key, default)
        if value in choices:
            return value
        self._wrong(f"{path}.{key}".lstrip("."), f"{value!r} is not one of {', '.join(choices)}")
        return default


def _port(digits: str) -> int | None:
    return int(digits) if _PORT.match(digits) and int(digits) <= 65535 else None
