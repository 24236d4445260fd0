"""How the ingress asks control: one connection to its socket for each connection to a guest, and for each of a client to control itself."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from space.ingress.heads import Way
from space.ingress.limits import Limits
from space.ingress.routing import Target, ToControl, ToPort
from space.ingress.session import Upstream
from space.model.errors import Unavailable
from space.rpc import ingress_api as api
from space.rpc.wire import Lost, Wire, dial


class Control:
    """Connects by the socket at `path`."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._open: Counter[str] = Counter()
        # A guest's certificate says nothing that its port does not: it is not verified, as in E2B's own edge.
        self._to_guests = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._to_guests.check_hostname = False
        self._to_guests.verify_mode = ssl.CERT_NONE

    async def dial(self, target: Target, way: Way) -> Upstream | api.Refused:
        """See `session.Dialer`."""
        if isinstance(target, ToControl):
            wire = await dial(self._path, "the server")
            wire.write(api.word(api.Api(way.peer[:64], way.secure)))
            return Upstream(wire, target, api.Stands(), _nothing)
        if self._open[target.sandbox] >= self._limits.connections_per_sandbox:
            return api.Refused("busy", f"{self._open[target.sandbox]} connections to this sandbox are open")
        self._open[target.sandbox] += 1
        release = self._release(target.sandbox)
        try:
            wire = await dial(self._path, "the server")
        except BaseException:
            release()
            raise
        wire.lost = release
        try:
            said = await _resolved(wire, target)
        except BaseException:
            wire.abort()
            raise
        if isinstance(said, api.Refused):
            wire.abort()
            return said
        if said.tls:
            try:
                await wire.secure(self._to_guests)
            except (OSError, TimeoutError, Lost):
                wire.abort()
                return api.Refused("failed", "the server in the sandbox does not speak TLS")
            wire.lost = release
        return Upstream(wire, target, said, release)

    def _release(self, sandbox: str) -> Callable[[], None]:
        def release() -> None:
            self._open[sandbox] -= 1
            if self._open[sandbox] <= 0:
                del self._open[sandbox]

        return release


async def _resolved(wire: Wire, target: ToPort) -> api.Stands | api.Refused:
    wire.write(api.word(api.Resolve(target.sandbox, target.port, target.token)))
    reader = api.WordReader()
    try:
        while True:
            data = await wire.read()
            if not data:
                raise Lost
            said = reader.receive(data, api.ANSWER)
            if said is not None:
                wire.unread(reader.rest)
                return said
    except (Lost, api.BadWord):
        raise Unavailable("the server ended the connection", hint="repeat in a moment") from None


def _nothing() -> None:
    pass
