"""The authorities that upstream servers are verified by: the machine's, and the operator's."""

from __future__ import annotations

import ssl
from pathlib import Path

from space.model.errors import Unavailable

_MOST = 16 << 20


def text(extra: Path | None) -> str:
    """The machine's roots, and the operator's (`egress_ca_file`), as PEM. Unavailable when the machine's are not to be had."""
    paths = ssl.get_default_verify_paths()
    found: list[str] = []
    known = [Path(path) for path in (paths.cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt") if path]
    for path in [next((one for one in known if one.is_file()), None), extra]:
        if path is None:
            continue
        try:
            read = path.read_text()[:_MOST]
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"the authorities in {path} cannot be read: {error}") from error
        if "-----BEGIN CERTIFICATE-----" not in read:
            raise Unavailable(f"{path} holds no certificate")
        found.append(read)
    if not found:
        raise Unavailable("this machine has no store of authorities", hint="install ca-certificates, or set egress_ca_file")
    return "\n".join(found)
