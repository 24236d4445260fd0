"""A leaf from memory: handshakes of both versions, without a file."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from space.gateway import chains
from space.gateway.surroundings import Leaf
from space.gateway.tls import guest_context, prepare, upstream_context
from space.testing.egress import Signer


@pytest.fixture(scope="module")
def leaf() -> Leaf:
    return Signer().make("allowed.example.com")


@contextmanager
def _no_file(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refused(*_: object) -> None:
        raise AssertionError("a file was opened")

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refused)
        patched.setattr("os.open", refused)
        patched.setattr(ssl.SSLContext, "load_cert_chain", refused)
        yield


@pytest.mark.parametrize("tls13", [True, False])
def test_a_context_of_a_leaf_is_made_without_opening_a_file(leaf: Leaf, monkeypatch: pytest.MonkeyPatch, *, tls13: bool) -> None:
    chains.library()
    with _no_file(monkeypatch):
        assert guest_context(leaf, tls13=tls13).options & ssl.OP_NO_TICKET


def test_the_chain_is_sent_whole() -> None:
    signer = Signer()
    made = signer.make("allowed.example.com")
    assert made.chain.count(b"BEGIN CERTIFICATE") == 2
    chains.verify(made.chain, made.key, "allowed.example.com", signer.root.pem.decode())
    with pytest.raises(ssl.SSLCertVerificationError):
        chains.verify(made.chain, made.key, "other.example.com", signer.root.pem.decode())


@pytest.mark.parametrize("cut", ["no chain", "no key", "another key", "garbage"])
def test_what_is_no_chain_with_its_key_is_refused(leaf: Leaf, cut: str) -> None:
    other = Signer().make("allowed.example.com")
    chain = {"no chain": b"", "garbage": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}.get(cut, leaf.chain)
    key = {"no key": b"", "another key": other.key}.get(cut, leaf.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(chains.ChainRefused):
        chains.load(context, chain, key)
    chains.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), leaf.chain, leaf.key)  # and nothing of it is left in OpenSSL's queue


def test_a_context_that_was_prepared_is_the_one_of_every_worker(leaf: Leaf, tmp_path: Path) -> None:
    from space.gateway.tls import Contexts

    bundle = leaf.chain.decode()
    assert Contexts(4, 60.0).upstream(None, bundle) is not Contexts(4, 60.0).upstream(None, bundle)
    prepare(bundle)
    assert Contexts(4, 60.0).upstream(None, bundle) is Contexts(4, 60.0).upstream("other", bundle)
    assert Contexts(4, 60.0).upstream(None, bundle, h2=True) is not Contexts(4, 60.0).upstream(None, bundle)
    assert upstream_context(bundle).verify_mode is ssl.CERT_REQUIRED
