"""Ports that tenants show to others: kept with the sandbox, told with the address that leads there. Who may reach one is `exposed`."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from space.config.instance import Instance
from space.config.settings import Settings
from space.control.e2b.face import Face
from space.control.e2b.ids import ENVD_PORT, to_e2b
from space.control.exposed import MOST, visible, with_port, without_port
from space.control.sandboxes import Sandboxes
from space.model.errors import Conflict, InvalidArgument, NotFound, Unavailable
from space.model.ports import ExposedPort, IngressInfo

_ID, _PORT, _TOKEN = "E2b-Sandbox-Id", "E2b-Sandbox-Port", "E2b-Traffic-Access-Token"


class Exposing:
    """What handlers ask."""

    def __init__(self, instance: Instance, settings: Settings, sandboxes: Sandboxes, face: Face) -> None:
        self._instance = instance
        self._settings = settings
        self._sandboxes = sandboxes
        self._face = face

    async def put(self, tenant: str, sandbox: str, port: int, *, public: bool) -> ExposedPort:
        """Show it from now on; idempotent. NotFound, Gone, Conflict, InvalidArgument."""
        entry = await self._sandboxes.wanted(tenant, sandbox)
        if port == ENVD_PORT:
            raise InvalidArgument(f"port {port} stands for a sandbox's own API and is never one of its servers'", hint="take another")
        extras = self._face.extras.of(entry.record.id)
        if str(port) not in extras.exposed and len(extras.exposed) >= MOST:
            raise Conflict(f"{MOST} ports of sandbox {sandbox} are exposed, as many as may be", hint="hide one")
        await self._face.extras.put(entry.record.id, with_port(extras, port, public=public))
        return self._told(entry.record.id, port, public=public)

    async def remove(self, tenant: str, sandbox: str, port: int) -> None:
        """Show it no more; idempotent. Connections that are open end."""
        entry = await self._sandboxes.wanted(tenant, sandbox)
        extras = self._face.extras.of(entry.record.id)
        if str(port) in extras.exposed:
            await self._face.extras.put(entry.record.id, without_port(extras, port))

    async def get(self, tenant: str, sandbox: str, port: int) -> ExposedPort:
        """One that is shown. NotFound."""
        entry = await self._sandboxes.wanted(tenant, sandbox)
        match visible(self._face.extras.of(entry.record.id), port):
            case "hidden":
                raise NotFound(f"port {port} of sandbox {sandbox} is not exposed", hint=f"space expose {sandbox} {port}")
            case how:
                return self._told(entry.record.id, port, public=how == "public")

    async def list(self, tenant: str, sandbox: str) -> list[ExposedPort]:
        """Those that were exposed one by one, by number."""
        entry = await self._sandboxes.wanted(tenant, sandbox)
        exposed = self._face.extras.of(entry.record.id).exposed
        return [self._told(entry.record.id, int(port), public=exposed[port]) for port in sorted(exposed, key=int)]

    def ingress(self) -> IngressInfo:
        """How ports are reached. Unavailable: serve has not said yet."""
        ca = None
        if self._settings.domain and self._settings.ingress_tls_certificate is None:
            try:
                ca = (self._instance.ingress_ca / self._settings.domain / "ca.pem").read_text()
            except OSError as error:
                raise Unavailable(f"the ingress's authority cannot be read: {error.strerror}") from error
        return IngressInfo(self._url(), self._settings.domain or None, ca)

    def _url(self) -> str:
        try:
            return str(json.loads(self._instance.endpoint.read_text())["ingress"])
        except (OSError, ValueError, KeyError):
            raise Unavailable("the server is starting, and where its ingress listens is not known yet", hint="repeat in a moment") from None

    def _told(self, sandbox: str, port: int, *, public: bool) -> ExposedPort:
        address, name = self._url(), to_e2b(sandbox)
        split = urlsplit(address)
        usual = split.port == (443 if split.scheme == "https" else 80)
        host = f"{port}-{name}.{self._settings.domain or 'localhost'}" + ("" if usual else f":{split.port}")
        token = None if public else self._face.tokens.traffic(sandbox)
        headers = {_ID: name, _PORT: str(port)} | ({} if token is None else {_TOKEN: token})
        return ExposedPort(sandbox, port, public, f"{split.scheme}://{host}", address, headers, token)
