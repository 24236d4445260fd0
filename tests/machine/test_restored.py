"""What processes of a restored guest find: connections, clocks, random numbers, and a disk that was asked to be larger."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.machine.test_snapshots import Lab, Life, _in_lab, hook

from space.core.wire import guest
from space.host import namespaces
from space.model.errors import GuestError
from space.model.ids import new_snapshot_id
from space.node.vmm.seam import SnapshotPlan
from space.testing.fakevmm import NO_CHANNEL

pytestmark = pytest.mark.machine


async def _snapshot(life: Life) -> str:
    name = new_snapshot_id()
    await life.machine.snapshot(SnapshotPlan(name), NO_CHANNEL)
    return name


async def _start(life: Life, name: str, script: str) -> None:
    """A kept process of root's; its file says when it is ready."""
    kept = guest.Exec([b"python3", b"-c", script.encode()], None, [], "root", None, stdin=False, keep=name)
    await life.session.open("exec", kept, finish=False)
    await life.run(f"for i in $(seq 300); do test -e /run/{name} && exit 0; sleep 0.1; done; exit 1")


INHERITED = """
import socket
away = socket.create_connection(("198.18.0.9", 443), timeout=None)
open("/run/pr-inherited", "w").close()
try:
    said = repr(away.recv(1))
except OSError as error:
    said = error.strerror
open("/run/away", "w").write(said)
"""
# A process that is there for the loopback connection alone: what is sent on one end comes out of the other, also after a restore.
LOOPBACK = """
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs = listener.accept()[0]
open("/run/pr-loopback", "w").close()
while not os.path.exists("/run/go"):
    time.sleep(0.05)
ours.sendall(b"whole")
open("/run/came", "wb").write(theirs.recv(5))
time.sleep(1000)
"""


def test_connections_to_elsewhere_end_with_a_restore_and_those_within_the_guest_go_on() -> None:
    async def work(lab: Lab) -> None:
        parent = await lab.boot()
        await _start(parent, "pr-inherited", INHERITED)  # the edge's listener completes it, whoever takes it
        await _start(parent, "pr-loopback", LOOPBACK)
        name = await _snapshot(parent)
        child = await lab.restore(name)
        said = await child.run("for i in $(seq 100); do test -s /run/away && break; sleep 0.1; done; cat /run/away")
        assert said in ("Broken pipe", "Connection reset by peer")  # of a read that was under way, of one that begins
        assert (
            await child.run("touch /run/go; for i in $(seq 100); do test -s /run/came && break; sleep 0.1; done; cat /run/came") == "whole"
        )
        assert await parent.run("test -e /run/away || echo waits") == "waits"
        await lab.end(child)
        await lab.end(parent)
        await lab.rootd.discard_snapshot(name)

    _in_lab(work)


def test_a_clone_has_the_larger_disk_that_was_asked_for_and_its_children_have_it_too() -> None:
    async def work(lab: Lab) -> None:
        parent = await lab.boot()
        name = await _snapshot(parent)
        least = -(-lab.template.disk_bytes >> 20)
        size = "stat -fc '%b %S' / | awk '{print int($1 * $2 / 1048576)}'; cat /sys/block/vda/size"
        before = [int(word) for word in (await parent.run(size)).split()]
        child = await lab.restore(name, disk_mib=least + 1024)
        after = [int(word) for word in (await child.run(size)).split()]
        assert after[1] == (least + 1024) << 11
        assert after[0] - before[0] > 900, (before, after)
        await child.run("head -c 3000000 /dev/urandom > /tmp/big; sync; cat /tmp/big | sha256sum > /tmp/sum")
        second = await _snapshot(child)
        grandchild = await lab.restore(second, disk_mib=least + 1024)
        assert [int(word) for word in (await grandchild.run(size)).split()] == after
        assert await grandchild.run("sha256sum < /tmp/big | cmp - /tmp/sum && echo same") == "same"
        for each in (grandchild, child, parent):
            await lab.end(each)
        for each_name in (second, name):
            await lab.rootd.discard_snapshot(each_name)

    _in_lab(work)


@pytest.mark.parametrize("turns", [2, pytest.param(20, marks=pytest.mark.full)])
def test_a_larger_disk_is_filled_however_late_the_guests_kernel_sees_it(turns: int) -> None:
    """The VMM shows the size while the machine stands still; the guest's own work on that may come after its claim."""

    async def work(lab: Lab) -> None:
        parent = await lab.boot()
        name = await _snapshot(parent)
        least = -(-lab.template.disk_bytes >> 20)
        for turn in range(turns):
            child = await lab.restore(name, disk_mib=least + 1024 + turn)
            told = int(await child.run("stat -fc '%b %S' / | awk '{print int($1 * $2 / 1048576)}'"))
            assert told > least + 900, (turn, told)
            await lab.end(child)
        await lab.end(parent)
        await lab.rootd.discard_snapshot(name)

    _in_lab(work)


def test_a_disk_that_stays_small_is_a_failure_that_says_so_and_one_that_grows_is_waited_for() -> None:
    async def work(lab: Lab) -> None:
        parent = await lab.boot()
        name = await _snapshot(parent)
        await lab.end(parent)
        least = -(-lab.template.disk_bytes >> 20)
        child = await lab.restore(name, disk_mib=least + 64, shown=False)
        has, wanted = least << 20, (least + 64) << 20
        began = time.monotonic()
        with pytest.raises(GuestError, match=f"the root disk was to have {wanted} bytes, and has {has} after 5 s"):
            await child.session.call("grow", guest.Grow(wanted))
        assert 4.5 < time.monotonic() - began < 20
        growing = asyncio.ensure_future(child.session.call("grow", guest.Grow(wanted)))
        await asyncio.sleep(1)
        assert not growing.done()
        began = time.monotonic()
        await child.machine.show_disk(least + 64)  # the kernel's announcement ends the wait
        assert guest.expect(guest.Configured, await growing).disk_bytes > has - (has >> 4)
        assert time.monotonic() - began < 3
        assert int(await child.run("cat /sys/block/vda/size")) << 9 == wanted
        await lab.end(child)
        await lab.rootd.discard_snapshot(name)

    _in_lab(work)


RESTARTS = b"import ctypes; ctypes.CDLL(None).reboot(0x1234567)"


def test_a_restored_guest_shuts_down_in_order_and_restarts_as_one_that_booted() -> None:
    async def work(lab: Lab) -> None:
        parent = await lab.boot()
        name = await _snapshot(parent)
        ending = [await lab.restore(name), await lab.restore(name), parent]
        await ending[0].session.call("shutdown", guest.Empty())
        await ending[1].session.open(
            "exec", guest.Exec([b"python3", b"-c", RESTARTS], None, [], "root", None, stdin=False, keep="pr-end"), finish=False
        )
        await parent.session.call("shutdown", guest.Empty())
        for each in ending:
            assert "shut itself down" in await asyncio.wait_for(each.machine.wait(), 10)
            await lab.end(each)
        await lab.rootd.discard_snapshot(name)

    _in_lab(work)


def _certificate(begins: datetime) -> bytes:
    """A key and a self-signed certificate of localhost's, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(begins).not_valid_after(begins + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return secret + builder.sign(key, hashes.SHA256()).public_bytes(pem)


HANDSHAKE = """
cat > /run/pem
python3 - <<'end'
import socket, ssl, threading
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain("/run/pem")
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    server.wrap_socket(listener.accept()[0], server_side=True).sendall(b"x")
threading.Thread(target=serve, daemon=True).start()
client = ssl.create_default_context(cafile="/run/pem")
with client.wrap_socket(socket.create_connection(listener.getsockname()), server_hostname="localhost") as wrapped:
    print(wrapped.recv(1), wrapped.version())
end
"""


def test_a_certificate_younger_than_the_snapshot_is_valid_right_after_the_restore() -> None:
    async def work(lab: Lab) -> None:
        parent = await lab.boot()
        name = await _snapshot(parent)
        await lab.end(parent)
        await asyncio.sleep(5)
        child = await lab.restore(name)
        pem = _certificate(datetime.now(UTC) - timedelta(seconds=2)).decode()
        assert await child.run(HANDSHAKE.replace("cat > /run/pem", f"cat > /run/pem <<'end'\n{pem}end")) == "b'x' TLSv1.3"
        await lab.end(child)
        await lab.rootd.discard_snapshot(name)

    _in_lab(work)


_EVERYTHING = 0x0003  # one kind alone would be seen behind the packet filter, which lets nothing through


def _ask_by_arp(netns: Path) -> bytes:
    """One ARP request to the guest, in a process of this slot's network; its answer, b"" when none comes."""
    namespaces.enter_network(netns)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERYTHING)) as packet:
        packet.bind(("tap0", 0))
        packet.settimeout(10)
        ours = packet.getsockname()[4]
        asks = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, ours, socket.inet_aton("10.0.0.1"), bytes(6), socket.inet_aton("10.0.0.2"))
        packet.send(b"\xff" * 6 + ours + b"\x08\x06" + asks)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            frame = packet.recv(2048)
            if frame[20:22] == b"\x00\x02" and frame[28:32] == socket.inet_aton("10.0.0.2"):
                return frame
    return b""


RESEEDS = """
import os, random, signal, time
ready = f"/run/reseed/{os.getpid()}"
def reseed(*_):
    random.seed()
    open(ready, "w").close()
signal.signal(signal.SIGUSR1, reseed)
os.makedirs("/run/reseed", exist_ok=True)
random.seed(1)
open(ready, "w").close()
open("/run/pr-warm", "w").close()
while not os.path.exists("/run/draw"):
    time.sleep(0.05)
open("/run/drawn", "w").write(str(random.getrandbits(128)))
time.sleep(1000)
"""
HOOK = (
    "for each in /run/reseed/*; do pid=${each##*/}; rm $each; kill -USR1 $pid || continue;"
    " until test -e $each || ! kill -0 $pid; do sleep 0.02; done; done"
)


def test_a_warm_interpreter_reseeds_itself_by_a_hook_and_the_first_packet_is_answered() -> None:
    async def work(lab: Lab) -> None:
        parent = await lab.boot()
        await hook(parent, "20-reseed", HOOK)
        await _start(parent, "pr-warm", RESEEDS)
        name = await _snapshot(parent)
        await lab.end(parent)
        drawn = set[str]()
        for _ in range(2):
            child = await lab.restore(name, asked=_ask_by_arp)
            draw = "touch /run/draw; for i in $(seq 100); do test -s /run/drawn && break; sleep 0.1; done; cat /run/drawn"
            drawn.add(await child.run(draw))
            await lab.end(child)
        assert len(drawn) == 2
        await lab.rootd.discard_snapshot(name)

    _in_lab(work)
