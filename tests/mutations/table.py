"""Every defence with a weakened form of it, and the tests that must fail then.

A mutation is a place in the product's source (which stands there exactly once) and other words for it. The product itself has no switch for
any of this: `test_no_switch.py` looks for one.
"""

from __future__ import annotations

from dataclasses import dataclass

_NAMES, _PATHS, _VERDICT = "tests/unit/policy/test_names.py", "tests/unit/policy/test_paths.py", "tests/unit/policy/test_verdict.py"
_AGREEMENT, _ADDRESSES = "tests/unit/policy/test_agreement.py", "tests/unit/policy/test_addresses.py"
_DNS, _HELLO = "tests/unit/wire/test_dns.py", "tests/unit/wire/test_clienthello.py"
_HTTP1, _HTTP2, _BODIES = "tests/unit/wire/test_http1.py", "tests/unit/wire/test_http2.py", "tests/unit/wire/test_bodies.py"
# On the kernel, by frames and connections: that a text is another one than its golden proves nothing.
_EDGE, _OUTBOUND = "tests/host/test_edge.py", "tests/host/test_outbound.py"
_TLS, _WEBSOCKET, _REPLIES = "tests/unit/gateway/test_tls.py", "tests/unit/gateway/test_websocket.py", "tests/unit/gateway/test_replies.py"
_REQUESTS, _LIMITS, _DNSSERVER = (
    "tests/unit/gateway/test_requests.py",
    "tests/unit/gateway/test_limits.py",
    "tests/unit/gateway/test_dnsserver.py",
)
_DIAL, _CONNECT, _RESOLVE = "tests/unit/dialer/test_dial.py", "tests/unit/dialer/test_connect.py", "tests/unit/dialer/test_resolve.py"
_ZYGOTE, _FILTERS = "tests/unit/gateway/test_zygote.py", "tests/unit/gateway/test_filters.py"
_GRANT, _LENT = "tests/unit/credentials/test_grant.py", "tests/unit/broker/test_credentials.py"
_SESSIONS = "tests/unit/gateway/test_sessions.py"
_POLICY_CHANGES, _FAULTS = "tests/unit/gateway/test_policy_changes.py", "tests/unit/gateway/test_faults.py"

_CREDENTIALS, _TRIPWIRE = "tests/unit/gateway/test_credentials.py", "tests/unit/credentials/test_tripwire.py"
_PACKED = "tests/unit/credentials/test_packed.py"
_FROM_A_WORKER = "tests/unit/auditd/test_from_a_worker.py"
_CONFINED = "tests/host/test_gateway_process.py"
_ROUTING, _INGRESS, _PORTS = (
    "tests/unit/ingress/test_routing.py",
    "tests/unit/ingress/test_session.py",
    "tests/unit/control/test_control_ingress.py",
)


@dataclass(frozen=True)
class Mutation:
    """name: of it. defence: of the design that it takes away. module: where `old` stands once; new: what stands there instead.

    quick: in every run of CI. host: its tests need root and the kernel.
    """

    name: str
    defence: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]
    quick: bool = False
    host: bool = False


def _of(defence: str, module: str, *rows: tuple[str, str, str, str], quick: tuple[str, ...] = ()) -> list[Mutation]:
    return [
        Mutation(name, defence, f"space.{module}", old, new, tuple(tests.split()), name in quick, "tests/host/" in tests)
        for name, old, new, tests in rows
    ]


MUTATIONS: tuple[Mutation, ...] = (
    *_of(
        "whose a grant is and what it permits",
        "core.credentials.grant",
        ("grant-for-any-method", "    if methods is not None and method not in methods:", "    if False:", _GRANT),
        ("grant-of-any-tenant", "    if tenant != life.tenant:", "    if False:", _GRANT),
        (
            "grant-for-another",
            "life.sandbox in who.sandboxes:",
            "who.sandboxes:",
            f"{_GRANT} {_LENT}",
        ),
        ("grant-for-forks", "    if life.forked and not grant.forks:", "    if False:", f"{_GRANT} {_LENT}"),
        ("grant-for-ever", "    return end is None or now >= end", "    return False", f"{_GRANT} {_LENT}"),
        ("grant-to-any-host", "    if host != asked_host or port != asked_port or method in _NEVER:", "    if False:", f"{_GRANT} {_LENT}"),
        ("grant-in-one-reading", "    return all(any(pattern.matches(", "    return any(any(pattern.matches(", _GRANT),
        quick=("grant-to-any-host",),
    ),
    *_of(
        "a credential is lent after it was judged, counted and written down",
        "broker.leases",
        (
            "lent-unwritten",
            "        await self._record(bound, asked, secret=grant.secret, version=version, uses=uses)",
            "        pass",
            _LENT,
        ),
        ("lent-although-revoked", "        if held.revoked:", "        if False:", _LENT),
        ("lent-although-revoked-meanwhile", "        self._judged(bound, asked, counted=True)", "        pass", _LENT),
        ("lent-beyond-the-rate", "        if not self._rates.take(held.tenant, held.grant.secret, rate):", "        if False:", _LENT),
        ("lent-beyond-its-uses", "        if grant.uses is not None and not self._grants.use(held):", "        if False:", _LENT),
        ("lent-without-approval", "        if grant.approval and not asked.approved:", "        if False:", _LENT),
        quick=("lent-unwritten",),
    ),
    *_of(
        "a rate holds over the broker's end",
        "broker.rates",
        ("rate-begun-anew", "_Bucket(*rows[0]) if rows else ", "", "tests/unit/broker/test_rates.py"),
        ("rate-by-a-clock-put-back", "max(0.0, now - bucket.at)", "abs(now - bucket.at)", "tests/unit/broker/test_rates.py"),
    ),
    *_of(
        "sessions of upstreams resume for what they were verified for",
        "gateway.sessions",
        ("any-name", "kept = self._kept.get(key)", "kept = next(iter(self._kept.values()), None)", _SESSIONS),
        ("any-policy", "            self._generation = generation\n            self._kept.clear()", "            pass", _SESSIONS),
        ("for-ever", "if self._clock() >= kept.until:", "if False:", _SESSIONS),
        (
            "past-the-certificate",
            "min(left, self._seconds, float(session.timeout))",
            "min(self._seconds, float(session.timeout))",
            _SESSIONS,
        ),
        quick=("any-name",),
    ),
    *_of(
        "what the zygote takes and from whom",
        "gateway.zygote",
        ("any-asker", "if uid not in self._uids or len(", "if len(", _ZYGOTE),
        ("shared-slot", "if self._slots.get(question.slot, question.sandbox) != question.sandbox:", "if False:", _ZYGOTE),
        ("earlier-life", "if there is not None and there.generation > question.generation:", "if False:", _ZYGOTE),
        (
            "late-policy",
            "if bound.worker is worker and any(deadline <= self._clock() for _, deadline, _ in worker.waiting):",
            "if False:",
            _ZYGOTE,
        ),
        ("older-policy", "if question.policy_generation < bound.policy_generation:", "if False:", _ZYGOTE),
        ("worker-floods", "if worker.allowance < 1:", "if False:", _ZYGOTE),
        ("no-rest", "if now < bound.rest:", "if False:", _ZYGOTE),
        quick=("any-asker", "shared-slot"),
    ),
    *_of(
        "what the zygote takes and from whom",
        "gateway.bindings",
        ("unsealed-policy", "if _seals(descriptor) & _POLICY_SEALS != _POLICY_SEALS:", "if False:", _ZYGOTE),
        ("any-memory", "if _seals(descriptor) & _MEMORY_SEALS != _MEMORY_SEALS or ", "if False and ", _ZYGOTE),
    ),
    *_of(
        "what a worker may ask of the kernel",
        "gateway.filters",
        (
            "worker-forks",
            '(*_BOTH, Call("fcntl", (OneOf(1, _FCNTL),)), "dup")',
            '(*_BOTH, Call("fcntl", (OneOf(1, _FCNTL),)), "dup", "clone")',
            _FILTERS,
        ),
        ("executable", 'Call("mmap", (NoBits(2, _PROT_EXEC),))', '"mmap"', _FILTERS),
        ("any-uid", 'Call("setresuid", identity)', '"setresuid"', _FILTERS),
        ("any-group", 'Call("setgroups", (OneOf(0, (0,)),))', '"setgroups"', _FILTERS),
        quick=("any-uid",),
    ),
    *_of(
        "what a worker may ask of the kernel",
        "core.plan.seccomp",
        (
            "all-calls",
            "    code.append((_RET, 0, 0, EPERM))\n    if len(code) > MOST",
            "    code.append((_RET, 0, 0, ALLOW))\n    if len(code) > MOST",
            _FILTERS,
        ),
        ("any-arch", "(_JEQ, 1, 0, _AUDIT_ARCH[arch])", "(_JEQ, 1, 1, _AUDIT_ARCH[arch])", "tests/unit/plan/test_plan_seccomp.py"),
        quick=("all-calls",),
    ),
    *_of(
        "names and budgets over workers",
        "core.policy.kept",
        ("unread-names", "self._read_names()", "None", "tests/unit/policy/test_synthetic.py"),
        ("torn-entries", "checksum == _checksum(name, address) and ", "", "tests/unit/policy/test_kept.py"),
        ("unread-budgets", "self._read_budgets()", "None", "tests/unit/gateway/test_spending.py"),
    ),
    *_of(
        "what cannot be recorded does not happen",
        "gateway.outside",
        ("name-told-later", "if isinstance(record, NameDecided) or self._behind or", "if False and", _FROM_A_WORKER),
        ("nobody-told", "            self._unrecorded(error)", "            pass", _FROM_A_WORKER),
    ),
    *_of(
        "edge filter and source check",
        "core.plan.edge",
        ("any-source", '        _drop("foreign_source", _match("ip", "saddr", "!=", GUEST)),\n', "", _EDGE),
        ("any-mac", '        _drop("foreign_mac", _match("ether", "saddr", "!=", GUEST_MAC)),\n', "", _EDGE),
        ("fragments", '        _drop("ip_fragment", _any_bit("ip", "frag-off", 0xBFFF)),', "", _EDGE),
        ("edge-accepts", "priority {hook[1]}; policy drop;", "priority {hook[1]}; policy accept;", _EDGE),
        ("any-address", '_accept("admitted_tcp", _to("==", [plan.synthetic])),', '_accept("admitted_tcp"),', _EDGE),
        ("refused-goes-on", "_count(counter), _mark(REFUSED_MARK), _ACCEPT)", "_count(counter), _ACCEPT)", _EDGE),
        ("forged-arp", '            _match("arp", "saddr ip", "==", GUEST),\n', "", _EDGE),
    ),
    *_of(
        "the dialer's packet filter",
        "core.plan.outbound",
        ("no-outbound", 'f"\\t\\tmeta skuid {outbound.uid} jump dialer\\n"', '""', _OUTBOUND),
    ),
    *_of(
        "names: canon",
        "core.policy.names",
        ("case", "    name = name.lower()\n", "", _NAMES),
        ("address-like", "    if _NUMBER.match(labels[-1]):", "    if False:", _NAMES),
        ("punycode", "        if again != label:", "        if False:", _NAMES),
        ("wildcard-deep", "        return bool(dot and head) and rest == self.suffix", "        return name.endswith(self.suffix)", _NAMES),
        quick=("address-like",),
    ),
    *_of(
        "DNS strictness",
        "core.wire.dns",
        ("dotted-label", 'if any(b"." in label or not label.isascii() for label in self.labels):', "if False:", _DNS),
        ("answer-as-query", "    if flags & _QR:", "    if False:", _DNS),
        ("two-questions", "    if (questions, answers, authorities) != (1, 0, 0) or additionals > 1:", "    if not questions:", _DNS),
        ("bytes-behind", "    if at != len(message):", "    if False:", _DNS),
        quick=("dotted-label",),
    ),
    *_of(
        "DNS strictness",
        "gateway.dnsserver",
        ("any-type", "        if query.qtype != Type.A:", "        if False:", _DNSSERVER),
        ("names-without-budget", "if name not in self._known and not self._distinct.take(now):", "if False:", _DNSSERVER),
    ),
    *_of(
        "SNI check",
        "core.policy.agreement",
        ("any-sni", '    return None if name == flow.name else "sni_mismatch"', "    return None", _AGREEMENT),
        ("no-sni", '        return "sni_missing"', "        return None", _AGREEMENT),
        ("old-tls", '        return "tls_version"', "        pass", _AGREEMENT),
        quick=("any-sni",),
    ),
    *_of(
        "authority check, ports agreement",
        "core.policy.agreement",
        ("any-authority", "    if name != flow.name:", "    if False:", _AGREEMENT),
        ("any-port", '    return None if port == flow.port else "authority_port"', "    return None", _AGREEMENT),
        ("absolute-form", "        if of_authority(flow, found[2]) is not None:", "        if False:", _AGREEMENT),
        quick=("any-authority", "any-port"),
    ),
    *_of(
        "resumption and tickets; verification of upstreams",
        "gateway.tls",
        (
            "upstream-name",
            "    context.hostname_checks_common_name = False\n",
            "    context.hostname_checks_common_name = False\n    context.check_hostname = False\n",
            _TLS,
        ),
        ("tickets", "    context.num_tickets = 0\n", "    context.num_tickets = 2\n", _TLS),
        (
            "upstream-chain",
            "    context.hostname_checks_common_name = False\n",
            "    context.check_hostname = False\n    context.verify_mode = ssl.CERT_NONE\n",
            _TLS,
        ),
    ),
    *_of(
        "parser strictness: ClientHello",
        "core.wire.clienthello",
        ("two-names", "    if kind != 0 or names:", "    if kind != 0:", _HELLO),
        ("extension-twice", "        if kind in found:", "        if False:", _HELLO),
        ("bytes-after-hello", "        if len(message) > 4 + length or len(self._raw) > self._at:", "        if False:", _HELLO),
        ("hello-without-limit", "        if self._taken > MOST_BYTES:", "        if False:", _HELLO),
        quick=("two-names",),
    ),
    *_of(
        "parser strictness: HTTP/1.1; chunked and lengths",
        "core.wire.http1",
        ("length-and-chunked", "    if chunked and length is not None:", "    if False:", _HTTP1),
        ("two-lengths", "    if len(lengths) > 1:", "    if False:", _HTTP1),
        ("odd-length", "    if not _DIGITS.match(lengths[0]):", "    if False:", _HTTP1),
        ("any-coding", '    if [coding.lower() for coding in codings] != [b"chunked"]:', "    if False:", _HTTP1),
        ("any-field", "    if not _FIELDS.match(block):", "    if False:", _HTTP1),
        ("two-hosts", "    if len(hosts) != 1:", "    if not hosts:", _HTTP1),
        ("any-version", '        if version != b"1.1":', "        if False:", _HTTP1),
        ("hop-by-hop", "    gone = HOP_BY_HOP | options | besides", "    gone = options | besides", _HTTP1),
        ("connection-names-host", "    if options & _NOT_HOP:", "    if False:", _HTTP1),
        ("fields-without-limit", "    if len(found) > MOST_FIELDS:", "    if False:", _HTTP1),
        quick=("length-and-chunked", "two-hosts"),
    ),
    *_of(
        "chunked; trailers",
        "core.wire.bodies",
        ("chunk-extension", "        if found is None or (found[2] and not self._extensions):", "        if found is None:", _BODIES),
        (
            "chunk-overrun",
            '            if self._state == "end" and not b"\\r\\n".startswith(self._line):',
            "            if False:",
            _BODIES,
        ),
        ("any-trailer", "        if not _TRAILER.match(line) or self._trailers > _MOST_TRAILERS:", "        if False:", _BODIES),
    ),
    *_of(
        "parser strictness: HTTP/2",
        "core.wire.http2",
        ("host-and-authority", '    if hosts and hosts != [pseudo[b":authority"]]:', "    if False:", _HTTP2),
        ("h2-connect", ' or pseudo[b":method"] == b"CONNECT":', ":", _HTTP2),
        ("pseudo-twice", "            if rest or name in pseudo:", "            if False:", _HTTP2),
        ("h2-control-bytes", "        if not _VALUE.match(value):", "        if False:", _HTTP2),
        ("floods", "        if left < 0:", "        if False:", _HTTP2),
        ("h2-101", ' or status == b"101":', ":", _HTTP2),
        quick=("host-and-authority",),
    ),
    *_of(
        "paths in one form",
        "core.policy.paths",
        ("encoded-twice", '    if b"%" in plain and _TWICE.search(text):', "    if False:", _PATHS),
        ("encoded-slash", '    if "%2F" in text:', "    if False:", _PATHS),
        ("overlong", '    if b"%" in plain and _OVERLONG.search(text):', "    if False:", _PATHS),
        ("encoded-parameter", '_PARAMETER = re.compile(r";|%3B")', '_PARAMETER = re.compile(r";")', _PATHS),
        ("above-root", '                raise PathRefused("dots", "the path leads above its root")', "                continue", _PATHS),
    ),
    *_of(
        "verdicts: every layer, every reading",
        "core.policy.verdict",
        ("any-method", "    if rule.methods is not None and asked.method not in rule.methods:", "    if False:", _VERDICT),
        ("any-reading", "        for reading in asked.path.readings:", "        for reading in asked.path.readings[:1]:", _VERDICT),
        (
            "lower-widens",
            "        for verdict in above:\n            if isinstance(verdict, Deny):",
            "        for verdict in ():\n            if 1:",
            _VERDICT,
        ),
        ("trace", "        if asked.method.upper() in _ECHOING:", "        if False:", _VERDICT),
        ("foreign", '    if asked.foreign and rule.foreign == "refuse":', "    if False:", _VERDICT),
        quick=("lower-widens", "any-reading"),
    ),
    *_of(
        "WebSocket rule",
        "core.policy.verdict",
        ("any-websocket", "    if asked.websocket and not rule.websocket:", "    if False:", f"{_VERDICT} {_WEBSOCKET}"),
    ),
    *_of(
        "WebSocket rule",
        "gateway.websocket",
        ("unmasked", "        if bool(head[1] & 0x80) is not self._masked:", "        if False:", _WEBSOCKET),
        ("large-frame", "        if length > self._most:", "        if False:", _WEBSOCKET),
    ),
    *_of(
        "Alt-Svc, 1xx and 101",
        "gateway.exchange",
        (
            "alt-svc",
            'STRIPPED = frozenset({b"alt-svc"})',
            "STRIPPED: frozenset[bytes] = frozenset()",
            f"{_REQUESTS} tests/unit/gateway/test_http2_requests.py",
        ),
        (
            "any-101",
            '    if accept is None or len(answers) != 2 or values.get(b"sec-websocket-accept") != accept:',
            "    if accept is None:",
            _WEBSOCKET,
        ),
        ("interim-flood", "MOST_INTERIM = 16", "MOST_INTERIM = 1 << 30", _REPLIES),
    ),
    *_of(
        "trailers",
        "core.wire.http2",
        ("trailer-host", "    if {name for name, _ in rest} & {", "    if set() & {", _HTTP2),
    ),
    *_of(
        "what is judged is what goes",
        "gateway.judgement",
        ("method-override", "    if override is not None and _narrowed(stack, asked):", "    if False:", _REQUESTS),
        (
            "forwarded-host",
            "if field[0] not in dropped and not telling.is_dropped(field[0])]",
            "]",
            _REQUESTS,
        ),
    ),
    *_of(
        "what a policy asks and limits holds for what is under way",
        "gateway.opaque",
        ("unasked-stream", "            if self._ask:", "            if False:", "tests/unit/gateway/test_wall.py"),
        ("standing-limit", "            self._limit(stack, verdict)", "            pass", "tests/unit/gateway/test_wall.py"),
        quick=("unasked-stream",),
    ),
    *_of(
        "spellings",
        "gateway.telling",
        ("underscores", '.decode("ascii").replace("_", "-") for', '.decode("ascii") for', "tests/unit/gateway/test_wall.py"),
    ),
    *_of(
        "address table",
        "core.policy.addresses",
        (
            "mixed-answer",
            "    return next((verdict for verdict in verdicts if isinstance(verdict, Undialable)), verdicts[0])",
            "    return verdicts[0]",
            _ADDRESSES,
        ),
        ("own-address", "    if address in ranges.own:", "    if False:", _ADDRESSES),
        ("no-table", "    return rows[at] if at >= 0 else None", "    return None", _ADDRESSES),
        quick=("mixed-answer", "no-table"),
    ),
    *_of(
        "dial check: vet",
        "dialer.vet",
        ("no-vet", "        if isinstance(verdict, Undialable):", "        if False:", f"{_DIAL} {_RESOLVE}"),
        (
            "own-unknown",
            '            return NotChecked("own_addresses_unknown", denied=False)',
            "            own = frozenset()",
            "tests/unit/dialer/test_vet.py",
        ),
    ),
    *_of(
        "dial check: peer",
        "dialer.connect",
        (
            "any-peer",
            "        if (ip_address(peer[0]), peer[1]) != (address, port) or peer == sock.getsockname():",
            "        if False:",
            _CONNECT,
        ),
    ),
    *_of(
        "policy generation at dial",
        "dialer.policies",
        (
            "any-generation",
            "        if number is not None and number != held.number:",
            "        if False:",
            "tests/unit/dialer/test_dial.py tests/unit/dialer/test_desk.py",
        ),
        (
            "no-policy",
            '            return Refused("no_policy", denied=True)',
            "            return None",
            "tests/unit/dialer/test_dial.py tests/unit/dialer/test_desk.py",
        ),
    ),
    *_of(
        "messages between processes",
        "core.wire.dialing",
        (
            "any-spelling",
            "    if isinstance(said, Request) and written != said.name:",
            "    if False:",
            "tests/fuzz/wire/test_dialing_fuzz.py tests/fuzz/test_corpus.py",
        ),
    ),
    *_of(
        "limits",
        "gateway.connection",
        (
            "handshakes-without-limit",
            '        if self._scheme in ("https", "passthrough") and shared.counts.handshakes >= shared.limits.handshakes:',
            "        if False:",
            f"{_LIMITS} {_TLS}",
        ),
    ),
    *_of(
        "audit before release",
        "auditd.keeper",
        (
            "unwritten-is-written",
            '                answer = Refused(number, "no_capacity", f"the record cannot be written: {error.strerror}")',
            "                error.strerror",
            "tests/unit/auditd/test_auditd.py",
        ),
        (
            "sandbox-by-word",
            '            if not own or (record.sandbox == own and not getattr(record, "generation", 0)):',
            "            if 1:",
            "tests/unit/auditd/test_auditd.py",
        ),
        (
            "life-by-word",
            ' and not getattr(record, "generation", 0)):',
            "):",
            "tests/unit/auditd/test_auditd.py",
        ),
    ),
    *_of(
        "audit: chains and heads",
        "audit.chain",
        ("changed-record", "        if not hmac.compare_digest(_next(last, body), told):", "        if False:", "tests/unit/audit"),
        quick=("changed-record",),
    ),
    *_of(
        "audit: chains and heads",
        "broker.heads",
        (
            "head-goes-back",
            "        if count < before or (count == before and last != known):",
            "        if False:",
            "tests/unit/broker tests/unit/auditd/test_auditd.py",
        ),
    ),
    *_of(
        "credentials: the slot is emptied",
        "gateway.loans",
        ("slot-stays", "return slots.bare(usual) == name or usual in _UNSEARCHED", "return usual in _UNSEARCHED", _CREDENTIALS),
        ("slot-in-one-spelling", "return slots.bare(usual) == name or", "return usual == name or", _CREDENTIALS),
        quick=("slot-stays",),
    ),
    *_of(
        "credentials: a guest's own goes no further",
        "gateway.loans",
        ("foreign-credentials", "(text not in kept and telling.is_credential(text))", "False", _CREDENTIALS),
        ("foreign-parameters", "_is(key, name) or (key not in kept and telling.is_credential(key))", "_is(key, name)", _CREDENTIALS),
        ("guest-hides-echoes", 'frozenset({b"accept-encoding", b"range", b"if-range"})', "frozenset()", _CREDENTIALS),
    ),
    *_of(
        "credentials: by an explicit rule alone",
        "gateway.loans",
        ("grant-by-open", 'if verdict.rule is None or asked.scheme != "https":', 'if asked.scheme != "https":', _CREDENTIALS),
        (
            "grant-out-of-scope",
            "covering = [one for one in here if one.covers(",
            "covering = [one for one in here if True or one.covers(",
            _CREDENTIALS,
        ),
        ("grant-in-the-clear", ' or asked.scheme != "https":', ":", _CREDENTIALS),
    ),
    *_of(
        "credentials: placeholders are bound",
        "gateway.judgement",
        ("placeholder-anywhere", "if grants.places and (grant :=", "if False and (grant :=", _CREDENTIALS),
        quick=("placeholder-anywhere",),
    ),
    *_of(
        "credentials: placeholders are bound",
        "gateway.exchange",
        ("placeholder-in-body", "return watch.echoes > 0", "return False", _CREDENTIALS),
    ),
    *_of(
        "credentials: tripwire",
        "core.credentials.tripwire",
        ("echo-in-hex", "_hex(secret), ", "", _TRIPWIRE),
        ("echo-across-chunks", "        held = self.needles.beginning(data)\n", "        held = len(data)\n", _TRIPWIRE),
        ("echo-in-base64", "_hex(secret), *_base64s(secret))", "_hex(secret),)", _TRIPWIRE),
        ("echo-of-many", "range(0, len(texts), _TOGETHER)", "range(0, 1, _TOGETHER)", _TRIPWIRE),
        quick=("echo-across-chunks",),
    ),
    *_of(
        "credentials: tripwire",
        "core.credentials.packed",
        ("packed-otherwise", "if len(codings) > 1 or codings[0] not in {*_GZIP, _DEFLATE}:", "if False:", _PACKED),
        ("packed-goes-ahead", "        if self._inner.held and not ended:\n", "        if False:\n", _PACKED),
        ("packed-bomb", "if self._made > _ALLOWANCE + self._taken * _RATIO:", "if False:", _PACKED),
        ("packed-and-more", "                if not data:\n", "                if True:\n", _PACKED),
    ),
    *_of(
        "credentials: tripwire",
        "gateway.http",
        ("echo-in-head", "body.receive(data), exchange.told(out))", "body.receive(data), out)", _CREDENTIALS),
        ("echo-in-packed", "            exchange.replied(reply.fields)\n", "            pass\n", _CREDENTIALS),
        ("revoked-goes-on", "if not granted(self.shared, exchange):", "if False:", _CREDENTIALS),
    ),
    *_of(
        "ports: one place a request is for",
        "ingress.routing",
        ("target-of-another-host", '    if not head.target.startswith(b"/"):', "    if False:", _ROUTING),
        ("host-and-headers", "    if named is not None and named != (sandbox, port):", "    if False:", _ROUTING),
        ("any-host-by-headers", "not (is_address or name == LOCAL or label is not None or relayed)", "False", _ROUTING),
        ("sandbox-twice", "    if len(ids) != 1 or len(ports) != 1:", "    if not ids or not ports:", _ROUTING),
        quick=("host-and-headers",),
    ),
    *_of(
        "ports: replies of guests",
        "ingress.session",
        ("kept-with-more-behind", "and not body.rest and", "and", _INGRESS),
        ("kept-for-another-port", "kept.target == target and kept.usable", "kept.usable", _INGRESS),
        ("kept-and-spoken", "        return not self.wire.ended and not self.wire.waiting", "        return True", _INGRESS),
    ),
    *_of(
        "ports: what goes on",
        "ingress.heads",
        ("way-of-a-client", "    dropped = _ROUTING | _OF_THE_WAY |", "    dropped = _ROUTING |", _INGRESS),
        ("token-to-guest", "    dropped = _ROUTING | _OF_THE_WAY |", "    dropped = _OF_THE_WAY |", _INGRESS),
        ("cookies-for-others", '_DOMAIN.sub(b"", value)', "value", _INGRESS),
        ("any-switch", "accept is None or accepted != [accept] or", "accept is None or", _INGRESS),
    ),
    *_of(
        "ports: deny by default",
        "control.exposed",
        ("shown-unasked", "        if not extras.made:\n", "        if False:\n", _PORTS),
        ("sandboxs-own-api", "    if port == ENVD_PORT:\n", "    if False:\n", _PORTS),
        quick=("shown-unasked",),
    ),
    *_of(
        "ports: control decides",
        "control.ingress",
        ("private-to-anybody", 'case "private" if not self._services', 'case "private" if False and not self._services', _PORTS),
        ("open-after-hidden", "                task.cancel()\n", "                pass\n", _PORTS),
        quick=("private-to-anybody",),
    ),
    *_of(
        "worker's confinement",
        "gateway.workerprocess",
        ("worker-keeps-uid", "    os.setresuid(start.uid, start.uid, start.uid)\n", "", _CONFINED),
        ("worker-without-seccomp", "    syscalls.load_filter(filters.worker())\n", "", _CONFINED),
        ("worker-keeps-descriptors", "    _close_all_but(start)\n", "", _CONFINED),
        (
            "worker-dumpable",
            "    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)\n",
            "    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)\n",
            _CONFINED,
        ),
    ),
)
