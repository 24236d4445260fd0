"""Offers the session of one name's connection to others: {"first", "second", "hidden"}, by TLS 1.2 and 1.3."""

import socket
import ssl

from tests.security.guest import common

given = common.asked()


def request(made: ssl.SSLContext, to: str, sni: str, session: ssl.SSLSession | None = None) -> tuple[list[object], ssl.SSLSession | None]:
    """Status and whether a session was resumed, and the session that can be offered next."""
    with socket.create_connection((socket.gethostbyname(to), 443), 10) as plain:
        plain.settimeout(10)
        with made.wrap_socket(plain, server_hostname=sni, session=session) as sock:
            sock.sendall(common.get(sni, "/session"))
            got = b""
            while not common.done(got):
                piece = sock.recv(65536)
                if not piece:
                    break
                got += piece
            return [int(got.split(b" ")[1]), sock.session_reused], sock.session


found = {}
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    made = common.context(minimum_version=version, maximum_version=version)
    told: dict[str, object] = {}
    told["first"], session = request(made, given["first"], given["first"])
    told["again"], _ = request(made, given["first"], given["first"], session)
    told["second"], _ = request(made, given["second"], given["second"], session)
    try:
        request(made, given["first"], given["hidden"], session)
        told["hidden"] = "answered"
    except OSError:
        told["hidden"] = "refused"
    found[version.name.removeprefix("TLSv").replace("_", ".")] = told
common.tell(found)
