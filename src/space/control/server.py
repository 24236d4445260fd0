"""The composition root of the control process.

    python -I -m space.control.server --instance NAME --listen-fd N [--ready-fd N] [--tls-fd N]

serve binds the socket and starts this under control's uid. It is ready when the node has answered, or on loopback after
some seconds without it: reads are answered then, and everything else says `unavailable`. SIGTERM finishes what is in hand
for a moment and ends; SIGUSR1 ends every sandbox before that (setting `on_stop`). SIGKILL at any moment loses no sandbox, because
the store and the node's list decide at the next start.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from space import __version__
from space.config import instance as instances
from space.config import logs
from space.config.hold import hold
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.config.ready import say_ready
from space.config.settings import Settings, load_effective
from space.control import http, limits, openapi
from space.control.activity import Activity
from space.control.addresses import networks
from space.control.app import Api
from space.control.audit import AuditLog
from space.control.credentials import Credentials
from space.control.delivery import Sender
from space.control.e2b.cleaning import keep_clean
from space.control.e2b.face import Face
from space.control.egress_figures import EgressFigures
from space.control.events import EventLog
from space.control.exposing import Exposing
from space.control.handover import HandOver
from space.control.hosts import is_loopback
from space.control.ingress import Ports
from space.control.keys import KeyRing
from space.control.link import NodeLink, Refused
from space.control.prometheus import Figures
from space.control.quotas import Quotas
from space.control.quotas import defaults as quota_defaults
from space.control.sandboxes import Sandboxes
from space.control.services import Services
from space.control.store.store import Store
from space.control.template_figures import TemplateFigures
from space.control.templates import Templates
from space.control.timers import Timers
from space.control.webhooks import Webhooks
from space.model.errors import InvalidArgument, SpaceError
from space.model.isolation import HARDWARE
from space.rpc.node_api import EgressCounters, NodeInfo, Target

log = logging.getLogger("space.control")
_FIRST_NODE_SECONDS = 20.0
_ending: set[asyncio.Task[None]] = set()  # a loop keeps no task alive


def check_address(settings: Settings) -> None:
    """InvalidArgument when keys would cross a network in the clear."""
    if not is_loopback(settings.host) and settings.tls_certificate is None:
        raise InvalidArgument(
            f"the address {settings.host} is not loopback, and without TLS every key would cross the network in the clear",
            hint="set tls_certificate and tls_key, or host = 127.0.0.1",
        )


def check_isolation(settings: Settings, info: NodeInfo) -> None:
    """InvalidArgument when guests would be isolated by emulation only, and clients from elsewhere could run code in them."""
    if info.isolation != HARDWARE and not is_loopback(settings.host) and not settings.allow_remote_emulated:
        raise InvalidArgument(
            f"the address {settings.host} is not loopback, and this machine's isolation is {info.isolation}, which is no security boundary",
            hint="use a machine with KVM, or set allow_remote_emulated if you know what you do",
        )


@asynccontextmanager
async def compose(instance: Instance, settings: Settings) -> AsyncIterator[Services]:
    """Every part, within the event loop; the link is not running yet."""
    check_address(settings)
    store = Store(instance.control_data / "state.db")
    timers = Timers()
    try:
        keys = KeyRing(store)
        await keys.load()
        await keys.ensure_admin(instance.admin_key)
        quotas = Quotas(store, quota_defaults(settings))
        await quotas.load()
        events = EventLog(store, timers, keep_seconds=settings.events_days * 86_400, keep_per_tenant=settings.events_per_tenant)
        activity = Activity()
        sandboxes = Sandboxes(
            store,
            timers,
            events,
            activity,
            quotas,
            max_sandboxes=settings.max_sandboxes,
            max_ttl_seconds=settings.max_ttl_seconds,
            remember=settings.audit_days * 86_400.0,
        )
        link = NodeLink(instance.node_socket, sandboxes, accept=lambda info: check_isolation(settings, info))
        figures = Figures(lambda: sandboxes.phases, lambda: link.is_up, lambda: sandboxes.busy, lambda: webhooks.failing)
        events.alarmed = figures.alarm
        events.observe, quotas.observe = figures.event, figures.quota_refusal
        audit = AuditLog(store, timers, keep_seconds=settings.audit_days * 86_400)
        audit.start()
        await events.start()
        templates = Templates(store, events, quotas)
        await templates.start(link, sandboxes.usage)
        sandboxes.beside(templates.usage)
        building = TemplateFigures(lambda: templates.sizes, lambda: templates.builds.under_way)
        templates.builds.observe_build, templates.builds.observe_step = building.built, building.step
        figures.add(building)
        await sandboxes.start(link, figures, templates.resolve)
        templates.builds.under(sandboxes.policies)
        face = await Face.load(store, instance.control_data / "e2b", settings)
        sandboxes.heeded(face.heed)
        version = __version__
        allowed = networks(settings.webhook_networks)
        webhooks = Webhooks(store, events, Sender(allowed), allow_http=settings.allow_http_webhooks, allowed=allowed, version=version)
        webhooks.observe = figures.webhook
        await webhooks.start()
        document = openapi.document(version)
        egress = EgressFigures(lambda: sandboxes.running, lambda one: link.call("egress_counters", Target(one), EgressCounters))
        figures.add(egress)
        services = Services(
            settings,
            keys,
            link,
            sandboxes,
            figures,
            document,
            version,
            activity,
            events,
            quotas,
            webhooks,
            audit,
            egress,
            templates,
            Credentials(link, quotas),
            face,
            Exposing(instance, settings, sandboxes, face),
        )
        cleaning = asyncio.create_task(keep_clean(services), name="e2b cleaning")
        try:
            yield services
        finally:
            cleaning.cancel()
            await asyncio.wait({cleaning})
            await face.building.stop()
            await templates.stop()
            audit.flush()
            await webhooks.stop()
            await sandboxes.stop()
    finally:
        timers.close()
        await asyncio.to_thread(store.close)


def web(app: Any, settings: Settings, tls_fd: int | None, hand_over: HandOver | None = None) -> http.Server:
    """The server; with the certificate and key that serve read for us, or else as this uid can read them."""
    if tls_fd is None:
        return http.Server(http.config(app, certificate=settings.tls_certificate, key=settings.tls_key, hand_over=hand_over))
    try:
        return http.Server(http.config(app, certificate=f"/proc/self/fd/{tls_fd}", hand_over=hand_over))
    finally:
        os.close(tls_fd)


async def run(
    instance: Instance,
    settings: Settings,
    listener: socket.socket,
    ready_fd: int | None,
    tls_fd: int | None = None,
    also: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. also: the ingress's questions come there. Refused: the node must not be served at this address."""
    async with compose(instance, settings) as services, AsyncExitStack() as stack:
        hand_over = HandOver(settings, instance.relay_socket)
        stack.push_async_callback(hand_over.aclose)
        server = web(Api(services), settings, tls_fd, hand_over)
        server.on_stop = services.stopping
        if also is not None:
            ports = Ports(also, frozenset({0, instance.ingress_uid}), services, instance.node_socket, server.accept)
            ports.open()
            stack.push_async_callback(ports.aclose)
        following = asyncio.create_task(services.link.run(), name="node link")
        try:
            await _first_node(services.link, following, patient=not is_loopback(settings.host))
            following.add_done_callback(lambda _: server.stop())
            serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, partial(_end_all, services, server))
            say_ready(ready_fd)
            log.info("ready: instance %s on %s", instance.name, listener.getsockname())
            await serving
        finally:
            if not following.done():
                following.cancel()
            await asyncio.wait({following})
        if not following.cancelled() and (error := following.exception()) is not None:
            raise error


def _end_all(services: Services, server: http.Server) -> None:
    """Told to end the sandboxes too: then stop, whatever became of it. serve waits, and ends what is left."""

    async def end() -> None:
        try:
            left = await services.sandboxes.delete_all("the server was stopped (on_stop = delete)", limits.END_ALL_SECONDS)
            log.info("ended the sandboxes; %d are left", left)
        finally:
            server.stop()

    _ending.add(asyncio.get_running_loop().create_task(end(), name="end all"))


async def _first_node(link: NodeLink, following: asyncio.Task[None], *, patient: bool) -> None:
    """Until the node is there. patient: before that nobody may be served, because its isolation is not known."""
    risen = asyncio.create_task(link.wait_up())
    try:
        await asyncio.wait({risen, following}, timeout=None if patient else _FIRST_NODE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        risen.cancel()
    if following.done():
        following.result()


def configure_logging(form: str = "text") -> None:
    """One line an event on standard error, each with its request's id."""
    logs.configure("control", form)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # An answer that is cut off on purpose ends without its end mark; `app` has logged why.
    # Of what it cannot read it says nothing but that; who refused it, or handed it over, says why.
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not any(words in record.getMessage() for words in ("without completing response", "Invalid HTTP request received"))
    )


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="space.control", description="the HTTP API and what should be true")
    parser.add_argument("--instance", required=True)
    parser.add_argument("--listen-fd", required=True, type=int)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--also-fd", type=int, help="where the ingress asks")
    parser.add_argument("--tls-fd", type=int, help="a file with certificate and key, instead of those that the settings name")
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="for tests: where instances are")
    parser.add_argument("--run-root", type=Path, default=RUN_ROOT, help="for tests")
    options = parser.parse_args()
    instance = instances.load(options.instance, data_root=options.data_root, run_root=options.run_root)
    if instance is None:
        parser.error(f"there is no instance {options.instance!r} on this host")
    os.umask(0o077)
    configure_logging(options.log_format)
    listener = socket.socket(fileno=options.listen_fd)
    listener.set_inheritable(False)
    also = None if options.also_fd is None else socket.socket(fileno=options.also_fd)
    if also is not None:
        also.set_inheritable(False)
    try:
        hold(instance.control_data, "control")
        uvloop.run(run(instance, load_effective(instance), listener, options.ready_fd, options.tls_fd, also))
    except (SpaceError, Refused) as error:
        log.error("%s", error)  # noqa: TRY400 - its words are enough
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
