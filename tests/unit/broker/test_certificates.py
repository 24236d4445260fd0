"""Certificates as OpenSSL sees them: a guest that trusts a root trusts a leaf of exactly one name, and nothing below a leaf."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from space.broker.certificates import (
    Authority,
    load_authority,
    make_intermediate,
    make_leaf,
    make_root,
    new_key,
    private_pem,
)

NOW = datetime.now(UTC)
NAME = "www.example.com"


def handshake(root: Authority, chain: bytes, key: bytes, name: str, directory: Path) -> str | None:
    """What a client that trusts `root` says of a server with that chain; None when it is content."""
    (directory / "chain.pem").write_bytes(chain + key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "chain.pem")
    client = ssl.create_default_context(cadata=root.pem.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    assert one.version() == "TLSv1.3"
    return None


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def test_a_leaf_is_trusted_for_its_one_name_through_the_chain(tmp_path: Path) -> None:
    root = make_root("base", NOW)
    intermediate = make_intermediate(root, "sb-1", 1, NOW)
    key = new_key()
    leaf = make_leaf(intermediate, NAME, key.public_key(), NOW)
    chain = pem(leaf) + intermediate.pem
    assert handshake(root, chain, private_pem(key), NAME, tmp_path) is None
    assert "Hostname mismatch" in (handshake(root, chain, private_pem(key), "www.example.org", tmp_path) or "")
    assert "Hostname mismatch" in (handshake(root, chain, private_pem(key), "a.www.example.com", tmp_path) or "")
    assert handshake(root, pem(leaf), private_pem(key), NAME, tmp_path) == "unable to get local issuer certificate"
    assert handshake(make_root("base", NOW), chain, private_pem(key), NAME, tmp_path) is not None


def test_an_intermediate_signs_no_authority(tmp_path: Path) -> None:
    root = make_root("base", NOW)
    intermediate = make_intermediate(root, "sb-1", 1, NOW)
    below = make_intermediate(intermediate, "sb-2", 1, NOW)
    key = new_key()
    chain = pem(make_leaf(below, NAME, key.public_key(), NOW)) + below.pem + intermediate.pem
    assert handshake(root, chain, private_pem(key), NAME, tmp_path) == "path length constraint exceeded"


def test_a_leaf_signs_nothing(tmp_path: Path) -> None:
    root = make_root("base", NOW)
    intermediate = make_intermediate(root, "sb-1", 1, NOW)
    key = new_key()
    leaf = Authority(make_leaf(intermediate, NAME, key.public_key(), NOW), key)
    other = new_key()
    chain = pem(make_leaf(leaf, "www.example.org", other.public_key(), NOW)) + leaf.pem + intermediate.pem
    assert handshake(root, chain, private_pem(other), "www.example.org", tmp_path) is not None


def test_times_begin_a_day_early_and_a_leaf_never_outlives_its_intermediate() -> None:
    root = make_root("base", NOW)
    late = NOW + timedelta(days=6)
    intermediate = make_intermediate(root, "sb-1", 1, NOW)
    leaf = make_leaf(intermediate, NAME, new_key().public_key(), late)
    assert intermediate.certificate.not_valid_before_utc <= NOW - timedelta(hours=23)
    assert leaf.not_valid_after_utc <= intermediate.certificate.not_valid_after_utc
    assert leaf.not_valid_before_utc >= intermediate.certificate.not_valid_before_utc
    assert not intermediate.expires_within(NOW)
    assert intermediate.expires_within(NOW + timedelta(days=6, hours=13))


def test_two_lives_have_nothing_in_common() -> None:
    root = make_root("base", NOW)
    first, second = make_intermediate(root, "sb-1", 1, NOW), make_intermediate(root, "sb-1", 2, NOW)
    assert first.certificate.serial_number != second.certificate.serial_number
    assert first.key.public_key() != second.key.public_key()
    assert make_root("base", NOW).certificate.subject != root.certificate.subject


@pytest.mark.parametrize("name", ["WWW.example.com", "www.example.com.", "*.example.com", "127.0.0.1", "", "a b.example"])
def test_a_leaf_is_for_a_canonical_name(name: str) -> None:
    intermediate = make_intermediate(make_root("base", NOW), "sb-1", 1, NOW)
    with pytest.raises(ValueError):
        make_leaf(intermediate, name, new_key().public_key(), NOW)


def test_the_longest_name_fits(tmp_path: Path) -> None:
    name = ".".join(["a" * 63] * 3 + ["b" * 57, "com"])
    assert len(name) == 253
    root = make_root("base", NOW)
    intermediate = make_intermediate(root, "sb-1", 1, NOW)
    key = new_key()
    assert (
        handshake(root, pem(make_leaf(intermediate, name, key.public_key(), NOW)) + intermediate.pem, private_pem(key), name, tmp_path)
        is None
    )


def test_an_authority_is_kept_and_loaded_and_shows_no_key() -> None:
    root = make_root("base", NOW)
    again = load_authority(root.pem, private_pem(root.key))
    assert again.certificate == root.certificate
    assert "key" not in repr(root)
    with pytest.raises(ValueError, match="another key"):
        load_authority(root.pem, private_pem(new_key()))
    leaf = make_leaf(make_intermediate(root, "sb-1", 1, NOW), NAME, (key := new_key()).public_key(), NOW)
    with pytest.raises(ValueError, match="no authority"):
        load_authority(pem(leaf), private_pem(key))


def test_openssls_own_verifier_agrees(tmp_path: Path) -> None:
    root = make_root("base", NOW)
    intermediate = make_intermediate(root, "sb-1", 1, NOW)
    leaf = make_leaf(intermediate, NAME, new_key().public_key(), NOW)
    for name, data in (("root", root.pem), ("intermediate", intermediate.pem), ("leaf", pem(leaf))):
        (tmp_path / name).write_bytes(data)
    command = [
        "openssl",
        "verify",
        "-x509_strict",
        "-purpose",
        "sslserver",
        "-verify_hostname",
        NAME,
        "-CAfile",
        "root",
        "-untrusted",
        "intermediate",
        "leaf",
    ]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout.strip() == "leaf: OK"
    assert leaf.signature_hash_algorithm is not None
    assert isinstance(leaf.signature_hash_algorithm, hashes.SHA256)
