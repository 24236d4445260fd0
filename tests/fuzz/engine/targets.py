"""Everything that is fuzzed, by name."""

from __future__ import annotations

from tests.fuzz.engine import (
    fuzz_bundle,
    fuzz_clienthello,
    fuzz_credentials,
    fuzz_dns,
    fuzz_e2b,
    fuzz_http1,
    fuzz_http2,
    fuzz_ingress,
    fuzz_messages,
    fuzz_policy,
)

_ALL = (
    fuzz_dns.TARGET,
    fuzz_clienthello.TARGET,
    fuzz_http1.TARGET,
    fuzz_http2.TARGET,
    fuzz_ingress.TARGET,
    fuzz_policy.TARGET,
    fuzz_bundle.TARGET,
    fuzz_messages.DIALING,
    fuzz_messages.RECORDS,
    fuzz_messages.TALK,
    fuzz_credentials.TRIPWIRE,
    fuzz_credentials.CHUNKS,
    fuzz_e2b.MULTIPART,
    fuzz_e2b.ENVELOPES,
)
BY_NAME = {target.name: target for target in _ALL}
