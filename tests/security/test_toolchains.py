"""Node's fetch, npm, go and cargo in a real guest: each fetches what is allowed from the town, and is refused the rest."""

from __future__ import annotations

import pytest
from tests.security.walled import Walled

from space.testing import clienttools, townshops
from space.testing.egresstown import Town

NPM, GO, CARGO, SITE, UNLISTED = (f"{word}.example.com" for word in ("npm", "goproxy", "crates", "plain", "unlisted2"))
MODULE = "words.example.com/demo"
RULES = (
    {"host": NPM, "paths": ["/demo", "/demo/-/**"], "methods": ["GET"]},
    {"host": GO, "paths": [f"/{MODULE}/@v/**"], "methods": ["GET"]},
    {"host": CARGO, "paths": ["/index/config.json", "/index/de/mo/demo", "/crates/demo/**"], "methods": ["GET"]},
    {"host": SITE, "paths": ["/open"], "methods": ["GET"]},
)
_NODE = "export HOME=/tmp/node-home PATH=/opt/clients/node/bin:$PATH; mkdir -p /tmp/node-home; cd /tmp/node-home;"
_FETCH = "fetch(process.argv[1]).then(r => r.text().then(t => console.log(r.status, t)), e => console.log(String(e.cause)))"
_CLI = "node /opt/clients/node/lib/node_modules/npm/bin/npm-cli.js"
_GO = (
    "export GOROOT=/opt/clients/go/usr/lib/go-1.19 GOPATH=/tmp/gopath GOSUMDB=off HOME=/tmp; cd /tmp;"
    " GOPROXY=https://{0}/ /opt/clients/go/usr/lib/go-1.19/bin/go mod download {1}@v1.0.0 && cat /tmp/gopath/pkg/mod/{1}@v1.0.0/demo.go"
)
# cargo wants to know of a compiler what it compiles for, and none is needed to fetch
_RUSTC = (
    "rustc 1.75.0 (x 2023-12-01)\\nbinary: rustc\\ncommit-hash: x\\ncommit-date: x\\nhost: x86_64-unknown-linux-gnu\\nrelease: 1.75.0\\n"
)
_CARGO = (
    "export LD_LIBRARY_PATH=/opt/clients/cargo/usr/lib/x86_64-linux-gnu CARGO_HOME=/tmp/cargo-home RUSTC=/tmp/rustc HOME=/tmp;"
    " cargo=/opt/clients/cargo/usr/bin/cargo; rm -rf /tmp/crate;"
    " mkdir -p /tmp/crate/src $CARGO_HOME; : >/tmp/crate/src/lib.rs; cd /tmp/crate;"
    f" printf '#!/bin/sh\\nprintf \"{_RUSTC}\"\\n' >$RUSTC; chmod +x $RUSTC;"
    ' echo \'package = {{ name = "x", version = "0.1.0", edition = "2021" }}\' >Cargo.toml;'
    ' echo \'dependencies = {{ {1} = {{ version = "1", registry = "town" }} }}\' >>Cargo.toml;'
    " echo 'registries.town.index = \"sparse+https://{0}/index/\"' >$CARGO_HOME/config.toml;"
    " $cargo vendor -q /tmp/crate/all >/dev/null && cat /tmp/crate/all/{1}/src/lib.rs"
)
PROGRAMS = {
    # what is allowed and what is read then; what is refused, and what is read then; the same for a name of no rule
    "fetch": (
        (f"{_NODE} node -e '{_FETCH}' https://{SITE}/open", "200 GET /open HTTP/1.1"),
        (f"{_NODE} node -e '{_FETCH}' https://{SITE}/shut", "path_not_allowed"),
        (f"{_NODE} node -e '{_FETCH}' https://{UNLISTED}/", "getaddrinfo"),
    ),
    "npm": (
        (
            f"{_NODE} {_CLI} install --no-audit --no-fund --registry https://{NPM}/ demo && node -e 'console.log(require(\"demo\"))'",
            "from the registry",
        ),
        (f"{_NODE} {_CLI} install --no-audit --no-fund --registry https://{NPM}/ other", "egress_denied"),
        # glibc takes a refused query for a fault that passes, and npm by itself asks again after 10 s and after a minute
        (f"{_NODE} {_CLI} install --no-audit --no-fund --fetch-retries 0 --registry https://{UNLISTED}/ demo", "getaddrinfo EAI_AGAIN"),
    ),
    "go": (
        (_GO.format(GO, MODULE), "from the proxy"),
        (_GO.format(GO, "words.example.com/other"), "403 Forbidden"),
        (_GO.format(UNLISTED, "words.example.com/third"), "lookup"),
    ),
    "cargo": (
        (_CARGO.format(CARGO, "demo"), "from the index"),
        (_CARGO.format(CARGO, "other"), '"reason":"path_not_allowed"'),
        (_CARGO.format(UNLISTED, "demo"), "Could not resolve host"),
    ),
}


@pytest.fixture(scope="module")
def shops(place: Town) -> Town:
    """The town with what they fetch from."""
    place.serve(SITE)
    place.serve(UNLISTED)
    place.serve(NPM, townshops.Site(townshops.npm_registry(NPM)))
    place.serve(GO, townshops.Site(townshops.go_proxy(MODULE)))
    place.serve(CARGO, townshops.Site(townshops.cargo_index(CARGO)))
    return place


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_toolchain_fetches_what_is_allowed_and_is_refused_the_rest(guest: Walled, shops: Town, program: str) -> None:
    allowed, refused, unlisted = PROGRAMS[program]
    guest.allow(*RULES)
    tool = "node" if program in ("fetch", "npm") else program
    if not guest.sandbox.files.exists(f"/opt/clients/{tool}", user="root"):
        guest.sandbox.upload(clienttools.tree(tool), f"/opt/clients/{tool}", user="root")
    status, told = guest.sh(allowed[0], seconds=300)
    assert (status, allowed[1] in told) == (0, True), told
    guest.gives_up(*refused, seconds=300)
    guest.gives_up(*unlisted, seconds=300)
    assert shops.servers[UNLISTED].heads == []
    assert not [asked for asked in shops.zone.asked if asked[1] == UNLISTED]
