"""The proxies beside which the gateway is measured: fetched by the machine's own pip and apt, kept below the data directory, not installed.

mitmproxy in an environment of its own; Debian's squid-openssl unpacked, with the libraries that are not here. What cannot be had is said,
and its figures are left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from space.bench.gatewayload import NAME, Served, Target
from space.config.instance import DATA_ROOT
from space.host import process

MITMPROXY = "mitmproxy==11.0.2"
_SQUID = ("squid-openssl", "squid-common", "libecap3", "libltdl7", "libtdb1", "libnetfilter-conntrack3", "libnfnetlink0")
_CACHE = DATA_ROOT / "bench"
_START_SECONDS = 40.0


class NotHad(Exception):
    """It cannot be fetched or started here; the message says why."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """One that runs. pids: of all its processes, now."""

    target: Target
    pids: Callable[[], list[int]]


@dataclass(frozen=True, slots=True)
class Place:
    """What they have in common. roots: PEM of the upstream's authority; certificate: chain and key for NAME of an authority `root`."""

    directory: Path
    served: Served
    roots: Path
    certificate: Path
    root: str


@contextmanager
def mitmproxy(place: Place) -> Iterator[Proxy]:
    """As an explicit proxy that terminates TLS; large bodies are streamed."""
    home, port = place.directory / "mitmproxy", _free_port()
    home.mkdir()
    options = (
        f"confdir={home}", "flow_detail=0", f"ssl_verify_upstream_trusted_ca={place.roots}", "stream_large_bodies=1m", "http2=false",
        f"listen_port={port}", "listen_host=127.0.0.1",
    )  # fmt: skip
    command = [str(_mitmdump()), "-q", *(word for option in options for word in ("--set", option))]
    with _running(command, port, place.directory / "mitmproxy.log") as pid:
        root = (home / "mitmproxy-ca-cert.pem").read_text()
        # By address, since it resolves names as the machine does; it verifies the upstream for the name that the client says in TLS.
        connect = f"127.0.0.1:{place.served.port}"
        yield Proxy(Target("127.0.0.1", port, f"{NAME}:{place.served.port}", root, connect), lambda: family(pid))


@contextmanager
def squid(place: Place) -> Iterator[Proxy]:
    """As an explicit proxy that bumps every connection, as its documentation says, and logs every request; without cache."""
    root, home, port = _squid(), place.directory / "squid", _free_port()
    home.mkdir()
    libraries = {"LD_LIBRARY_PATH": f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu"}
    _authority(home)
    helper, share = f"{root}/usr/lib/squid/security_file_certgen", f"{root}/usr/share/squid"
    _ran([helper, "-c", "-s", str(home / "db"), "-M", "4MB"], libraries)
    (home / "hosts").write_text(f"127.0.0.1 {NAME}\n")
    (home / "squid.conf").write_text(
        f"http_port 127.0.0.1:{port} ssl-bump cert={home}/ca.pem generate-host-certificates=on dynamic_cert_mem_cache_size=4MB\n"
        f"sslcrtd_program {helper} -s {home}/db -M 4MB\nsslcrtd_children 2 startup=1 idle=1\n"
        "acl hello at_step SslBump1\nssl_bump peek hello\nssl_bump bump all\n"
        f"tls_outgoing_options cafile={place.roots}\nhttp_access allow all\nhosts_file {home}/hosts\n"
        f"cache deny all\ncache_mem 0\n"
        f"access_log daemon:{home}/access.log squid\ncache_log {home}/cache.log\ncache_store_log none\npid_filename {home}/pid\n"
        f"unlinkd_program {root}/usr/lib/squid/unlinkd\nlogfile_daemon {root}/usr/lib/squid/log_file_daemon\n"
        f"pinger_enable off\nshutdown_lifetime 0 seconds\ncoredump_dir {home}\nmax_filedescriptors 4096\n"
        f"mime_table {root}/usr/share/squid/mime.conf\nicon_directory {share}/icons\nerror_directory {home}/errors\n"
    )
    (home / "errors").mkdir()  # it serves none
    _give(home)
    with _running([f"{root}/usr/sbin/squid", "-N", "-f", str(home / "squid.conf")], port, home / "log", libraries) as pid:
        host = f"{NAME}:{place.served.port}"
        yield Proxy(Target("127.0.0.1", port, host, (home / "ca.crt").read_text(), host), lambda: family(pid))


@contextmanager
def bare(place: Place) -> Iterator[Proxy]:
    """The relay that ships with the bench."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        number = listener.fileno()
        words = [str(number), str(place.certificate), str(place.served.port), str(place.roots), NAME]
        command = [sys.executable, "-m", "space.bench.barerelay", *words]
        with _running(command, port, place.directory / "bare.log", dict(os.environ), keep=(number,)) as pid:
            yield Proxy(Target("127.0.0.1", port, f"{NAME}:{place.served.port}", place.root), lambda: family(pid))


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(entry.name))
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _mitmdump() -> Path:
    home = _CACHE / MITMPROXY.replace("==", "-")
    program = home / "bin" / "mitmdump"
    if not program.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(parents=True, exist_ok=True)
        try:
            _ran(["/usr/bin/python3", "-m", "venv", str(home)], {})
            _ran([str(home / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", MITMPROXY], dict(os.environ))
        except NotHad:
            shutil.rmtree(home, ignore_errors=True)
            raise
    return program


def _squid() -> Path:
    return debian("squid-openssl", _SQUID)


def debian(name: str, packages: Sequence[str]) -> Path:
    """Where these packages of Debian's are unpacked, and were not installed. NotHad."""
    home = _CACHE / name
    if not home.exists():
        staged = home.with_name(f"{name}.part")
        shutil.rmtree(staged, ignore_errors=True)
        (staged / "packages").mkdir(parents=True)
        _ran(["apt-get", "-o", "APT::Sandbox::User=root", "download", "-q", *packages], dict(os.environ), cwd=staged / "packages")
        for package in sorted((staged / "packages").iterdir()):
            _ran(["dpkg", "-x", str(package), str(staged)], {})
        shutil.rmtree(staged / "packages")
        staged.rename(home)
    return home


def _authority(home: Path) -> None:
    request = ["-subj", "/CN=squid bench", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE"]
    # Squid signs handshakes with its authority's own key. Of the kind that the gateway's leaves have, which is quicker than the RSA key
    # of its documentation; mitmproxy makes RSA keys by itself and has no setting for others.
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _ran(["openssl", "req", "-x509", *key, *request, "-keyout", f"{home}/ca.key", "-out", f"{home}/ca.crt"], {})
    (home / "ca.pem").write_text((home / "ca.crt").read_text() + (home / "ca.key").read_text())


def _give(home: Path) -> None:
    """Squid leaves root for a user of its own."""
    for path in (home, *home.rglob("*")):
        shutil.chown(path, "proxy", "proxy")
    for path in home.parents:
        if path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)


def _ran(command: list[str], environment: dict[str, str], cwd: Path | None = None) -> None:
    surroundings = {**process.ENVIRONMENT, **environment}
    try:
        subprocess.run(command, env=surroundings, cwd=cwd, check=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise NotHad(f"{' '.join(command)[:200]}: {error}: {said[-400:].decode(errors='replace')}") from None


@contextmanager
def _running(
    command: list[str], port: int, log: Path, environment: dict[str, str] | None = None, keep: tuple[int, ...] = ()
) -> Iterator[int]:
    """Started, and answering at its port."""
    surroundings = {**process.ENVIRONMENT, **(environment or {})}
    with log.open("ab") as out:
        started = subprocess.Popen(
            command, env=surroundings, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=keep, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port) or (keep and b"ready" not in log.read_bytes()):
            if started.poll() is not None or time.monotonic() > deadline:
                raise NotHad(f"{command[0]} does not start: {log.read_text(errors='replace')[-800:]}")
            time.sleep(0.1)
        yield started.pid
    finally:
        for one in reversed(family(started.pid)):
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                continue
        started.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
