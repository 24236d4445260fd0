"""The authority that guests of our root disks trust: made with the disk, its certificate in the guest's store, its key in an artefact.

The certificate stands in the system's store, and variables name the whole bundle for the programs that bring a store of their own
(`etc/environment`, which the daemon gives to every process, `su` to its shells, and a profile to the login shells that began with nothing).
The key lies in `root/<fingerprint>/key.pem`, root's alone; rootd hands it to an instance's broker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from space.config.artefacts import CERTIFICATE, KEY, Store
from space.setup import command, shelf

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
OURS = "/usr/local/share/ca-certificates/space.crt"
# Those that replace a program's own store name the whole bundle; Node's adds to it.
VARIABLES = {
    "SSL_CERT_FILE": BUNDLE,
    "REQUESTS_CA_BUNDLE": BUNDLE,
    "CURL_CA_BUNDLE": BUNDLE,
    "PIP_CERT": BUNDLE,
    "GIT_SSL_CAINFO": BUNDLE,
    "CARGO_HTTP_CAINFO": BUNDLE,
    "NODE_EXTRA_CA_CERTS": OURS,
    "DENO_TLS_CA_STORE": "system",
}
ENVIRONMENT = "".join(f"{name}={value}\n" for name, value in VARIABLES.items())
# What a login shell has already stands: it may be the sandbox's or the request's.
PROFILE = """\
# The variables of /etc/environment, for a login shell that began without them.
if [ -r /etc/environment ]; then
    while IFS= read -r _line || [ -n "$_line" ]; do
        _name=${_line%%=*}
        case "$_line" in *=*) ;; *) continue ;; esac
        case "$_name" in '' | [0-9]* | *[!A-Za-z0-9_]*) continue ;; esac
        eval "_there=\\${$_name+there}"
        [ -n "$_there" ] || export "$_line"
    done < /etc/environment
    unset _line _name _there
fi
"""
SUDOERS = f'Defaults env_keep += "{" ".join(VARIABLES)}"\n'
_SOURCE = Path(__file__).resolve().parents[2]
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from space.broker.newroot import main; main()"


@dataclass(frozen=True, slots=True)
class Fresh:
    """An authority that is in no artefact yet."""

    certificate: str
    key: str = field(repr=False)
    fingerprint: str


def make(python: Path, name: str) -> Fresh:
    """A new one. python: an interpreter that has the server's dependencies."""
    told = command.run([python, "-I", "-B", "-c", _PROGRAM, _SOURCE, name], what="make the root certificate of the template", cwd=Path("/"))
    return Fresh(**json.loads(told))


def keep(store: Store, fresh: Fresh) -> Path:
    """Commit it as an artefact."""
    final = store.authority(fresh.fingerprint)
    with shelf.staged(final, recorded=True) as stage:
        key = stage / KEY
        key.touch(mode=0o400)
        key.write_text(fresh.key)
        (stage / CERTIFICATE).write_text(fresh.certificate)
        shelf.describe(stage, fingerprint=fresh.fingerprint)
    return final


def install(tree: Path, certificate: str) -> None:
    """Into the system's store of a tree, as its administrator would."""
    path = tree / OURS.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(certificate)
    path.chmod(0o644)
    command.run(["chroot", tree, "update-ca-certificates"], what="put the root certificate into the template's store")
