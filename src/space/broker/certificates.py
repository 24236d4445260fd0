"""The certificate authority that guests trust: a root for a template, an intermediate for one life of a sandbox, a leaf for one name.

    root (in the template's store; key in the signer only)
      intermediate (short-lived, pathlen 0, of one sandbox generation; key in the signer only)
        leaf (exactly one name; key with the worker that serves it)

Everything is ECDSA P-256: 3,400 leaves a second and core, where RSA-2048 gives 19. Validity begins a day early, because a guest's clock
may be behind at its first request. Functions of keys, names and times; nothing is read or written here.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from space.core.policy.names import canon

BACKDATED = timedelta(days=1)
ROOT_LIFE = timedelta(days=3650)
INTERMEDIATE_LIFE = timedelta(days=7)
LEAF_LIFE = timedelta(days=2)
_RENEW_WITHIN = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate and the key that signs below it. The key has no `repr`."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def pem(self) -> bytes:
        """The certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def expires_within(self, now: datetime, margin: timedelta = _RENEW_WITHIN) -> bool:
        """Whether it should be made anew."""
        return self.certificate.not_valid_after_utc - now < margin


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def make_root(template: str, now: datetime) -> Authority:
    """A root of its own for a generation of a template. now: with a time zone, as all times here."""
    key = new_key()
    name = _name("space", f"root of {template} {secrets.token_hex(4)}")
    made = _builder(name, name, key.public_key(), now, ROOT_LIFE)
    return Authority(_authority(made, key.public_key(), key.public_key(), pathlen=1).sign(key, hashes.SHA256()), key)


def make_intermediate(root: Authority, sandbox: str, generation: int, now: datetime) -> Authority:
    """The authority of one life of a sandbox. It signs leaves only."""
    key = new_key()
    made = _builder(_name("space", f"{sandbox} {generation}"), root.certificate.subject, key.public_key(), now, INTERMEDIATE_LIFE)
    return Authority(_authority(made, key.public_key(), root.key.public_key(), pathlen=0).sign(root.key, hashes.SHA256()), key)


def make_leaf(intermediate: Authority, name: str, public_key: ec.EllipticCurvePublicKey, now: datetime) -> x509.Certificate:
    """A server's certificate for exactly that canonical name. ValueError when it is not canonical."""
    if canon(name) != name:
        raise ValueError(f"not a canonical name: {name[:80]!r}")
    issuer = intermediate.certificate
    life = min(LEAF_LIFE, issuer.not_valid_after_utc - now)
    made = _builder(_name("space", None), issuer.subject, public_key, now, life, least=issuer.not_valid_before_utc)
    return (
        made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        # Not critical, although the subject holds no name: some clients refuse what they do not expect there.
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(intermediate.key.public_key()), critical=False)
        .sign(intermediate.key, hashes.SHA256())
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key as a TLS library takes it."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 over its DER, in hex: what a template's manifest calls its root."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def load_authority(certificate: bytes, key: bytes) -> Authority:
    """From PEM. ValueError when they do not belong together or are no P-256 authority."""
    found, private = x509.load_pem_x509_certificate(certificate), serialization.load_pem_private_key(key, None)
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise ValueError("the authority's key is not ECDSA P-256")  # noqa: TRY004 - it came from a file
    if found.public_key() != private.public_key():
        raise ValueError("the authority's certificate is of another key")
    if not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise ValueError("the certificate is no authority's")
    return Authority(found, private)


def _name(organisation: str, common: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)]
    return x509.Name(parts if common is None else [*parts, x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
    *,
    least: datetime | None = None,
) -> x509.CertificateBuilder:
    begin = now - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin if least is None else max(begin, least))
        .not_valid_after(now + life)
    )


def _authority(
    made: x509.CertificateBuilder, public_key: ec.EllipticCurvePublicKey, issuer_key: ec.EllipticCurvePublicKey, *, pathlen: int
) -> x509.CertificateBuilder:
    return (
        made.add_extension(x509.BasicConstraints(ca=True, path_length=pathlen), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )
