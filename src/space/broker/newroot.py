"""A fresh root for set-up, which runs without the crypto library: `python -m space.broker.newroot NAME` prints it as one JSON object.

    {"certificate": PEM, "key": PEM, "fingerprint": SHA-256 of the certificate in DER, hex}

The key goes through a pipe to whoever asked, and nowhere else.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from space.broker.certificates import fingerprint, make_root, private_pem


def main() -> int:
    """Print one."""
    root = make_root(sys.argv[1], datetime.now(UTC))
    made = {"certificate": root.pem.decode(), "key": private_pem(root.key).decode(), "fingerprint": fingerprint(root.certificate)}
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
