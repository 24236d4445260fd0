"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(place: Path, name: str = "space", subject: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A self-signed certificate for `subject` below `place`, valid for two days, and its key (PEM files)."""
    cert, key = place / f"{name}.pem", place / f"{name}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=127.0.0.1", "-addext", f"subjectAltName={subject}", "-keyout", str(key), "-out", str(cert),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key
