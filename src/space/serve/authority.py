"""The authority of an instance's names, for operators who have no certificate for their domain: made when it is first needed.

It is good for names below that one domain and for nothing else (a name constraint, critical), so that who trusts it trusts this machine
with no other name. Its key is root's; the ingress gets a leaf and its key, new at each start, and never the authority's. `space ingress
ca` prints the certificate.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from space.config.instance import Instance
from space.model.errors import Internal

_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 397  # the most that browsers take
_SKEW = timedelta(hours=1)


def certificate(instance: Instance, domain: str) -> bytes:
    """A leaf for `domain` and the names right below it, its authority behind it, and its key; PEM."""
    authority, key = _authority(instance, domain)
    own = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    leaf = (
        x509.CertificateBuilder()
        .subject_name(_name(f"*.{domain}"))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(min(now + timedelta(days=_LEAF_DAYS), authority.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"*.{domain}"), x509.DNSName(domain)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return b"".join((leaf.public_bytes(serialization.Encoding.PEM), authority.public_bytes(serialization.Encoding.PEM), _pem(own)))


def _authority(instance: Instance, domain: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """That of the domain, made if there is none."""
    place = instance.ingress_ca / domain
    if not (place / "ca.pem").exists():
        _make(place, domain)
    key = serialization.load_pem_private_key((place / "ca-key.pem").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Internal(f"{place / 'ca-key.pem'} is not a key that this program made", hint="remove the directory: another is made")
    return x509.load_pem_x509_certificate((place / "ca.pem").read_bytes()), key


def _make(place: Path, domain: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = _name(f"space ingress of {domain}"), datetime.now(UTC)
    authority = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.NameConstraints(permitted_subtrees=[x509.DNSName(domain)], excluded_subtrees=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    place.parent.mkdir(mode=0o755, exist_ok=True)
    place.mkdir(mode=0o755, exist_ok=True)
    for each in (place.parent, place):
        each.chmod(0o755)  # whatever the umask made of it: control shows the certificate
    _write(place / "ca-key.pem", _pem(key), 0o600)
    _write(place / "ca.pem", authority.public_bytes(serialization.Encoding.PEM), 0o644)  # last: with it, the key is there


def _write(path: Path, data: bytes, mode: int) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())  # once: who trusts it does not want another after a power cut
    staged.rename(path)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
