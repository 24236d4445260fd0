"""A leaf's chain and key into a context, from memory: a worker can open no file, and `ssl` takes chains from files only.

The same libssl that `ssl` uses is asked directly. That the pointer behind an `ssl.SSLContext` is what it is taken for is checked once,
before any guest: `verify` makes a handshake in memory (the zygote does, and does not start when it fails).
"""

from __future__ import annotations

import _ssl
import ctypes
import functools
import ssl
from pathlib import Path

_EXTRA_CHAIN_CERT = 14  # SSL_CTRL_EXTRA_CHAIN_CERT
_HEAD = object.__basicsize__  # a context's first field after the object's head is its SSL_CTX *
_pointer, _int, _long = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "BIO_new_mem_buf": (_pointer, [ctypes.c_char_p, _int]),
    "BIO_free": (_int, [_pointer]),
    "PEM_read_bio_X509": (_pointer, [_pointer, _pointer, _pointer, _pointer]),
    "PEM_read_bio_PrivateKey": (_pointer, [_pointer, _pointer, _pointer, _pointer]),
    "X509_free": (None, [_pointer]),
    "EVP_PKEY_free": (None, [_pointer]),
    "ERR_clear_error": (None, []),
    "SSL_CTX_use_certificate": (_int, [_pointer, _pointer]),
    "SSL_CTX_use_PrivateKey": (_int, [_pointer, _pointer]),
    "SSL_CTX_check_private_key": (_int, [_pointer]),
    "SSL_CTX_ctrl": (_long, [_pointer, _int, _long, _pointer]),
    "SSL_CTX_get_options": (ctypes.c_uint64, [_pointer]),
}


class ChainRefused(ValueError):
    """Not a chain with its key."""


def load(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """The context presents the chain (leaf first) and signs with the key; both PEM. ChainRefused; then the context is of no use."""
    lib = library()
    address = ctypes.c_void_p.from_address(id(context) + _HEAD).value
    if not address or lib.SSL_CTX_get_options(address) & 0xFFFF_FFFF != context.options & 0xFFFF_FFFF:
        raise ChainRefused("this Python's ssl.SSLContext is laid out otherwise")
    try:
        _load(lib, address, chain, key)
    finally:
        lib.ERR_clear_error()  # what stays in this thread's queue would be the next handshake's error


def _load(lib: ctypes.CDLL, context: int, chain: bytes, key: bytes) -> None:
    bio = lib.BIO_new_mem_buf(chain, len(chain))
    first = True
    while certificate := lib.PEM_read_bio_X509(bio, None, None, None):
        if first:
            taken = lib.SSL_CTX_use_certificate(context, certificate) == 1
            lib.X509_free(certificate)
        else:  # this one becomes the context's
            taken = lib.SSL_CTX_ctrl(context, _EXTRA_CHAIN_CERT, 0, certificate) == 1
        if not taken:
            lib.BIO_free(bio)
            raise ChainRefused("a certificate of the chain is not taken")
        first = False
    lib.BIO_free(bio)
    if first:
        raise ChainRefused("there is no certificate")
    bio = lib.BIO_new_mem_buf(key, len(key))
    private = lib.PEM_read_bio_PrivateKey(bio, None, None, None)
    lib.BIO_free(bio)
    if not private:
        raise ChainRefused("there is no key")
    taken = lib.SSL_CTX_use_PrivateKey(context, private) == 1 and lib.SSL_CTX_check_private_key(context) == 1
    lib.EVP_PKEY_free(private)
    if not taken:
        raise ChainRefused("the key is not the certificate's")


@functools.cache
def library() -> ctypes.CDLL:
    """The libssl of `ssl` itself. RuntimeError where it is not to be had."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libssl" in line}
    for path in (*sorted(mapped), _ssl.__file__):  # the latter where it is linked in
        found = ctypes.CDLL(path)
        try:
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(found, name)
                function.restype, function.argtypes = result, arguments
        except AttributeError:
            continue
        return found
    raise RuntimeError("the library behind Python's ssl module is not to be found")


def verify(chain: bytes, key: bytes, name: str, roots: str) -> None:
    """A handshake of each version in memory with such a context, which who trusts `roots` (PEM) accepts for `name`.

    RuntimeError when this Python cannot do it. It also warms what OpenSSL makes at its first use.
    """
    for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load(server_context, chain, key)
        client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client_context.maximum_version = version
        client_context.load_verify_locations(cadata=roots)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context.wrap_bio(back, there, server_hostname=name)
        server = server_context.wrap_bio(there, back, server_side=True)
        done: set[ssl.SSLObject] = set()
        for _ in range(8):
            for one in (client, server):
                try:
                    one.do_handshake()
                    done.add(one)
                except ssl.SSLWantReadError:
                    continue
        if done != {client, server} or client.version() != version.name.replace("_", "."):
            raise RuntimeError(f"no handshake of {version.name} with a chain from memory")
