"""Certificates and keys on their way to control and the ingress, whose uids need not be able to read them.

serve reads the files as root, each time that the service is started (so that a renewed certificate counts), and hands the bytes
over in an anonymous file. It does not look into them: that is for the service. The ingress has its own files, or else for a domain a
certificate of this machine's authority (`authority`), or else the API's.
"""

from __future__ import annotations

import os
from pathlib import Path

from space.config.instance import Instance
from space.config.settings import Settings
from space.model.errors import InvalidArgument

_LARGEST = 1 << 20


def holders(settings: Settings) -> frozenset[str]:
    """The services that are handed a certificate."""
    api = settings.tls_key is not None
    return frozenset(name for name, has in (("control", api), ("ingress", api or settings.domain or settings.ingress_tls_key)) if has)


def configured(settings: Settings) -> None:
    """InvalidArgument names a file of the settings that cannot be read."""
    pem(settings)
    _ingress_files(settings)


def of_role(role: str, instance: Instance, settings: Settings) -> bytes | None:
    """What a service is handed: certificate chain and key in one, or None. InvalidArgument."""
    if role == "control":
        return pem(settings)
    if role != "ingress":
        return None
    if (files := _ingress_files(settings)) is not None:
        return files
    if settings.domain:
        from space.serve.authority import certificate

        return certificate(instance, settings.domain)
    return pem(settings)


def _ingress_files(settings: Settings) -> bytes | None:
    if settings.ingress_tls_certificate is None or settings.ingress_tls_key is None:
        return None
    certificate = _read("ingress_tls_certificate", settings.ingress_tls_certificate)
    return certificate + b"\n" + _read("ingress_tls_key", settings.ingress_tls_key)


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
