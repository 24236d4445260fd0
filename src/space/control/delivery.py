"""One delivery of a webhook: resolve, judge every address, connect to a judged one, with TLS for the name; sign; take the status.

No redirect is followed, no proxy of the environment is asked, no connection is kept (one that was proven for a name must not serve
another name at the same address), and nothing of the answer's body is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from space.control import limits
from space.control.addresses import HINT, Destination, literal_address, refusal
from space.core.policy.addresses import Address, Network

if TYPE_CHECKING:  # otherwise with the first delivery: 55 ms of control's start (measured) that a server without webhooks need not wait for
    import httpx

Resolve = Callable[[str, int], Sequence[str]]


class NotDelivered(Exception):
    """It was not taken; the sentence is for the tenant."""


def signature(secret: str, at: int, body: bytes) -> str:
    """The header `Space-Signature`: when, and the proof of when and what."""
    proof = hmac.new(secret.encode(), str(at).encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={proof}"


def resolve(host: str, port: int) -> list[str]:
    """Every address of a name, in the system's order of preference. OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_own(address: Address) -> bool:
    """Whether it is one of this machine's: only those can be bound to."""
    try:
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


class Sender:
    """Sends. Its threads resolve names, so that a name server that hangs holds up other deliveries only."""

    def __init__(
        self,
        allowed: Sequence[Network],
        *,
        resolve: Resolve = resolve,
        is_own: Callable[[Address], bool] = is_own,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed
        self._is_own = is_own
        self._resolve = resolve
        self._context = context
        self._resolvers = ThreadPoolExecutor(4, "webhook-resolver")

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        # With the first delivery as well: a server without webhooks need not load certificates.
        import httpx

        return httpx.AsyncClient(
            verify=self._context or ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=limits.WEBHOOK_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def aclose(self) -> None:
        """Let go."""
        if "_client" in self.__dict__:
            await self._client.aclose()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def send(self, to: Destination, body: bytes, headers: dict[str, str], secret: str) -> None:
        """Deliver once. NotDelivered unless the answer is 2xx within the time."""
        import httpx

        try:
            async with asyncio.timeout(limits.WEBHOOK_SECONDS):
                status = await self._post(to, body, headers | {"Space-Signature": signature(secret, int(time.time()), body)})
        except TimeoutError:
            raise NotDelivered(f"{to.host} did not answer within {limits.WEBHOOK_SECONDS:g} s") from None
        except httpx.HTTPError as error:
            raise NotDelivered(f"{to.host} could not be reached: {str(error)[:200] or type(error).__name__}") from None
        if 300 <= status < 400:
            raise NotDelivered(f"{to.host} answered {status}; redirects are not followed")
        if not 200 <= status < 300:
            raise NotDelivered(f"{to.host} answered {status}")

    async def _post(self, to: Destination, body: bytes, headers: dict[str, str]) -> int:
        import httpx

        addresses = await self._addresses(to)
        for address in addresses:
            try:
                return await self._post_to(address, to, body, headers)
            except httpx.ConnectError:
                if address == addresses[-1]:
                    raise
        raise AssertionError("there is at least one address")

    async def _post_to(self, address: Address, to: Destination, body: bytes, headers: dict[str, str]) -> int:
        host = f"[{address}]" if address.version == 6 else str(address)
        request = self._client.build_request(
            "POST",
            f"{'https' if to.secure else 'http'}://{host}:{to.port}{to.target}",
            content=body,
            headers={"Host": to.authority, "Content-Type": "application/json", **headers},
            # The certificate is checked against this name, not against the address that was connected to.
            extensions={"sni_hostname": to.host} if literal_address(to.host) is None else {},
        )
        response = await self._client.send(request, stream=True)
        try:
            return response.status_code
        finally:
            await response.aclose()

    async def _addresses(self, to: Destination) -> list[Address]:
        """Those that may be connected to, three at most."""
        literal = literal_address(to.host)
        if literal is None:
            try:
                texts = await asyncio.get_running_loop().run_in_executor(self._resolvers, self._resolve, to.host, to.port)
            except (OSError, UnicodeError) as error:
                raise NotDelivered(f"{to.host} could not be resolved: {str(error)[:200]}") from None
            found = [address for text in texts if (address := literal_address(text)) is not None]
        else:
            found = [literal]
        # One that is refused beside others is left out: what is connected to was judged, whatever else the name says.
        fine = [address for address in found if refusal(address, self._allowed, own=self._is_own(address)) is None]
        if not fine:
            # What a name leads to is not told: the server may know names that the tenant does not.
            why = "leads to no address of the public internet" if found else "has no address"
            raise NotDelivered(f"{to.host} {why}; {HINT}")
        return fine[:3]
