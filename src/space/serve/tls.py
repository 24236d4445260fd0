"""The API's certificate and key on their way to control, which runs under a uid that need not be able to read them.

serve reads both files as root, each time that control is started (so that a renewed certificate counts), and hands the bytes
over in an anonymous file. It does not look into them: that is for control.
"""

from __future__ import annotations

import os
from pathlib import Path

from space.config.settings import Settings
from space.model.errors import InvalidArgument

_LARGEST = 1 << 20


def pem(settings: Settings) -> bytes | None:
    """Certificate chain and key in one, or None without TLS. InvalidArgument names the file that cannot be read."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return _read("tls_certificate", settings.tls_certificate) + b"\n" + _read("tls_key", settings.tls_key)


def _read(setting: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidArgument(f"cannot read {setting} {path}: {error.strerror}", hint="serve reads it as root; PEM is wanted") from None
    if len(data) > _LARGEST:
        raise InvalidArgument(f"{setting} {path} is larger than {_LARGEST} bytes", hint="it holds a certificate chain or a key, as PEM")
    return data


def held(data: bytes) -> int:
    """A descriptor of an anonymous file with `data`."""
    descriptor = os.memfd_create("space-tls", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, 0o444)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
