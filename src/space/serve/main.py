"""`space serve`: bind the sockets of an instance, start its services (`roles`) under their uids, keep them running.

Root, and small for that: it parses nothing that anybody sends, and keeps no state but records of what it started. When it
dies the others go on, and the next one adopts them. When it is told to stop it stops them, control first; the sandboxes
run on and the next serve's node adopts them (setting `on_stop = "delete"`: they are ended first; `--ephemeral`, of private
instances: everything is removed instead).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import ip_address

from space.config import logs
from space.config import settings as config
from space.config.instance import DATA_ROOT, RUN_ROOT, SETTINGS_ROOT, Instance, abandoned, claim, mark_ephemeral
from space.host import syscalls
from space.model.errors import Internal, InvalidArgument, SpaceError
from space.model.ids import instance_name
from space.serve import exchange, kernel, keyring, layout, records, runtime, tls, verdict
from space.serve.notify import READY, STOPPING, notify
from space.serve.roles import of_instance
from space.serve.service import Command, Process, Role, module_command
from space.serve.supervisor import Supervisor

DEFAULT_INSTANCE = "default"
WRONG_USAGE = 2
_END_ALL_SECONDS = 60.0  # control gives them forty, and ends then
_log_format = "text"


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed command line. parent_fd: a socket to whom a private instance belongs: told once, its closing ends us. json: for programs."""

    instance: str
    overrides: dict[str, str]
    ephemeral: bool
    dev: bool
    parent_fd: int | None
    json: bool = False


def parse(argv: Sequence[str] | None) -> Request:
    """The command line; exits with status 2 on a wrong one, as argparse does."""
    parser = argparse.ArgumentParser(prog="space serve", description="Run the server of an instance (as root).")
    parser.add_argument("--instance", type=_name, default=DEFAULT_INSTANCE, help="which instance (default: %(default)s)")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE", help="override a setting of its file")
    parser.add_argument("--ephemeral", action="store_true", help="remove the instance, sandboxes included, at the end")
    parser.add_argument("--dev", action="store_true", help="let the services run from a checkout")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout when ready")
    parser.add_argument("--parent-fd", type=int, help=argparse.SUPPRESS)
    parsed = parser.parse_args(argv)
    overrides = {}
    for text in parsed.sets:
        key, found, value = text.partition("=")
        if not found:
            parser.error(f"--set wants KEY=VALUE, not {text!r}")
        overrides[key] = value
    return Request(parsed.instance, overrides, parsed.ephemeral, parsed.dev, parsed.parent_fd, parsed.json)


def _name(text: str) -> str:
    try:
        return instance_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    request = parse(argv)
    try:
        serve(request)
    except SpaceError as error:
        if request.json:
            fault = {"code": error.code, "message": error.message, "hint": error.hint, "request_id": None}
            print(json.dumps({"error": fault}), file=sys.stderr, flush=True)
        else:
            say(str(error))
        if request.parent_fd is not None:
            with suppress(OSError):
                told = {"error": error.code, "message": error.message, "hint": error.hint}
                os.write(request.parent_fd, json.dumps(told).encode() + b"\n")
        return WRONG_USAGE if isinstance(error, config.WrongFlag) else 1
    return 0


def serve(request: Request, command: Command | None = None) -> None:
    """The whole run of one serve. `command` is an argument so that tests can start small services."""
    if os.geteuid() != 0:
        raise InvalidArgument(f"space serve wants root, not uid {os.geteuid()}", hint="it starts each service under a uid of its own")
    if not request.dev:
        for objection in filter(None, map(runtime.objection, runtime.locations())):
            raise InvalidArgument(
                f"services do not run from here: {objection}", hint="`make setup` installs a runtime; --dev permits this one"
            )
    resolved = config.resolve(SETTINGS_ROOT / f"{request.instance}.toml", request.overrides, os.environ)
    settings = resolved.settings
    log_as(settings.log_format)
    tls.configured(settings)  # before anything is started
    _ensure_storage()
    _remove_abandoned()
    instance = claim(request.instance, ephemeral=request.ephemeral)
    with ExitStack() as undo:
        layout.make_directories(instance)
        undo.callback(os.close, layout.lock(instance))
        if exchange.finish(instance):
            say("a restore that was cut off is complete now")
        if request.ephemeral:
            undo.callback(_remove, instance)
            mark_ephemeral(instance)  # it may have been there before
        keyring.ensure(instance, settings, durable=not request.ephemeral)
        config.save_effective(instance, settings, resolved.sources)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)  # orphaned VMMs and helpers end up here and are reaped
        run(instance, settings, request, command or services(instance, settings))


def services(instance: Instance, settings: config.Settings) -> Command:
    """The real services' command lines."""
    return module_command(instance.name, tls=tls.holders(settings), log_format=settings.log_format)


def run(instance: Instance, settings: config.Settings, request: Request, command: Command) -> None:
    """Adopt or start the services of a locked instance, watch them, stop them."""
    roles = of_instance(instance)
    build = runtime.build(repr(settings))
    boot, ends = kernel.boot_id(), False
    adopted = _adopt(instance, roles, build)
    if settings.accelerator == "auto":
        verdict.hand_on(instance)
    with ExitStack() as undo:
        listeners = {role.name: _listener(instance, role, settings, adopted) for role in roles}
        also = {role.name: _also(instance, role, adopted) for role in roles if role.also}
        for listener in (*listeners.values(), *also.values()):
            undo.enter_context(listener)

        def changed(running: Sequence[Process]) -> None:
            records.save(instance.services, (records.Record(each.role.name, each.pid, each.started, boot, build) for each in running))

        supervisor = Supervisor(
            roles,
            command=command,
            listeners=listeners,
            log=lambda role: instance.log / f"{role}.log",
            changed=changed,
            say=say,
            tls=lambda role: tls.of_role(role, instance, settings),
            also=also,
        )
        undo.callback(supervisor.close)
        if request.parent_fd is not None:
            supervisor.stop_at_hangup(request.parent_fd, "the one who started it is gone")
        for process in adopted.values():
            supervisor.adopt(process)
        if adopted:
            say("adopted " + ", ".join(f"{name} (pid {process.pid})" for name, process in adopted.items()))
        undo.callback(instance.endpoint.unlink, missing_ok=True)
        undo.callback(supervisor.stop_all)
        if supervisor.start_missing():
            endpoint = _announce(instance, settings, listeners)
            if request.parent_fd is not None:
                os.write(request.parent_fd, json.dumps(endpoint).encode() + b"\n")
            else:
                isolation = _isolation(str(endpoint["url"]))
                say(f"{endpoint['url']}, isolation: {isolation}, key in {instance.admin_key}")
                if request.json:
                    ready = {"url": endpoint["url"], "instance": instance.name, "isolation": isolation, "key_file": str(instance.admin_key)}
                    print(json.dumps(ready), flush=True)
            notify(READY)
            say(f"stopping: {supervisor.run()}")
            notify(STOPPING)
            ends = settings.on_stop == "delete" and not request.ephemeral
            if ends and not supervisor.tell("control", signal.SIGUSR1, _END_ALL_SECONDS):
                say("control did not end the sandboxes in time")
            if settings.accelerator == "auto":
                verdict.keep(instance)
    if ends:
        _end_sandboxes(instance)
    _farewell(instance, ephemeral=request.ephemeral)


def _end_sandboxes(instance: Instance) -> None:
    """End what control could not, without its help; control finds them lost, and the node undoes the rest of them, at their next start."""
    from space.rootd.sweep import sweep

    left = _sandboxes(instance)
    if left:
        say(f"{left} sandboxes are swept")
        for sentence in sweep(instance):
            say(sentence)


def _adopt(instance: Instance, roles: Sequence[Role], build: str) -> dict[str, Process]:
    """The services that an earlier serve left running; those of another runtime or other settings are stopped instead."""
    from space.serve.service import stop

    recorded = {record.role: record for record in records.load(instance.services)}
    adopted: dict[str, Process] = {}
    for role in reversed(roles):  # where they are stopped: in the order in which they always are
        record = recorded.get(role.name)
        process = records.attach(record, role) if record is not None else None
        if record is None or process is None:
            continue
        if record.build == build:
            adopted[record.role] = process
        else:
            say(f"{record.role} (pid {process.pid}) runs with another runtime or other settings: {stop(process)}")
            process.close()
    return adopted


def _listener(instance: Instance, role: Role, settings: config.Settings, adopted: dict[str, Process]) -> socket.socket:
    """The role's listener: the one that an adopted service holds, so that no waiting connection is lost, else a new one."""
    from space.serve.service import LISTEN_FD

    return _taken_over(role, LISTEN_FD, adopted) or layout.listen(instance, role.name, settings)


def _also(instance: Instance, role: Role, adopted: dict[str, Process]) -> socket.socket:
    """The second one of a role that has it, likewise."""
    from space.serve.service import ALSO_FD

    return _taken_over(role, ALSO_FD, adopted) or layout.listen_also(instance, role.name)


def _taken_over(role: Role, number: int, adopted: dict[str, Process]) -> socket.socket | None:
    from space.serve.service import ended

    if (holder := adopted.get(role.name)) is None:
        return None
    try:
        return socket.socket(fileno=kernel.fetch_descriptor(holder.pidfd, number))
    except OSError as error:
        if ended(holder, 2.0):  # it was on its way out when it was found, or had never begun
            holder.close()
            del adopted[role.name]
            return None
        raise Internal(f"cannot take over the listener of {role.name} (pid {holder.pid}): {error}", hint="end that process") from error


def _announce(instance: Instance, settings: config.Settings, listeners: Mapping[str, socket.socket]) -> dict[str, object]:
    secure = tls.holders(settings)
    url, ingress = (address(*listeners[name].getsockname()[:2], tls=name in secure) for name in ("control", "ingress"))
    endpoint = {"instance": instance.name, "url": url, "ingress": ingress, "pid": os.getpid(), "admin_key": str(instance.admin_key)}
    staged = instance.run / f".endpoint.json.{os.getpid()}"
    staged.write_text(json.dumps(endpoint) + "\n")
    staged.chmod(0o644)
    staged.rename(instance.endpoint)
    return endpoint


def address(host: str, port: int, *, tls: bool) -> str:
    """The URL by which this machine reaches what listens there."""
    if ip_address(host).is_unspecified:  # every address: the loopback one is among them
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _isolation(url: str) -> str:
    """What the API says of its guests, for the operator's eyes."""
    import http.client

    address = url.split("://", 1)[1]
    connection = http.client.HTTPConnection(address, timeout=10)
    if url.startswith("https:"):
        import ssl

        # Our own listener, by an address that its certificate need not name; nothing secret is sent.
        connection = http.client.HTTPSConnection(address, timeout=10, context=ssl._create_unverified_context())  # noqa: S323
    try:
        connection.request("GET", "/healthz")
        return str(json.loads(connection.getresponse().read(65536))["isolation"])
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return "unknown yet"
    finally:
        connection.close()


def _ensure_storage() -> None:
    from space.setup.storage import ensure

    ensure()


def _remove(instance: Instance) -> None:
    from space.serve.remove import remove

    remove(instance)


def _remove_abandoned() -> None:
    """Private instances whose serve was killed, whoever they belonged to: what cannot be removed is no reason not to serve."""
    if not abandoned():
        return
    from space.serve.remove import remove_abandoned

    try:
        for name in remove_abandoned(DATA_ROOT, RUN_ROOT):
            say(f"removed instance {name}, whose serve was killed")
    except (SpaceError, OSError) as error:
        say(f"an abandoned instance stays: {error}")


def _farewell(instance: Instance, *, ephemeral: bool) -> None:
    left = _sandboxes(instance)
    if left and not ephemeral:
        say(f"{left} sandbox{'es' if left > 1 else ''} left running for the next serve (space clean --instance {instance.name} ends all)")


def _sandboxes(instance: Instance) -> int:
    """How many have a directory."""
    return sum(1 for entry in instance.sandboxes.iterdir() if entry.is_dir()) if instance.sandboxes.is_dir() else 0


def log_as(form: str) -> None:
    """How `say` writes from now on."""
    global _log_format
    _log_format = form


def say(sentence: str) -> None:
    """One line for the operator, in the format of the services' logs."""
    if _log_format == "json":
        fields = {"time": logs.stamp(time.time()), "level": "info", "service": "serve", "logger": "space.serve", "message": sentence}
        print(json.dumps(fields), file=sys.stderr, flush=True)
        return
    print(f"space serve: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
