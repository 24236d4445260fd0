"""The broker as a process: who asks is the socket, one name a leaf, two lives apart, and no key of an authority ever leaves it."""

from __future__ import annotations

import asyncio
import base64
import os
import resource
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from space.audit.chain import base_statement, statement
from space.audit.publickey import PublicKey
from space.broker import keyring, lives
from space.broker.certificates import load_authority, private_pem
from space.broker.heads import Heads
from space.broker.keyring import Keyring
from space.broker.lives import Lives
from space.broker.roots import Roots
from space.broker.store import Store
from space.model.errors import Conflict, Gone, InvalidArgument, NotFound, PermissionDenied, RateLimited, Unavailable
from space.model.secret import Secret
from space.rpc import broker_api as api
from space.rpc.broker_client import BrokerControl, Signer, Voucher
from space.rpc.packets import pair, send_with
from space.testing.brokerprocess import BrokerProcess

ONE, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20
NAME = "www.example.com"
HASH = [bytes([number]) * 32 for number in range(256)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@asynccontextmanager
async def control(broker: BrokerProcess) -> AsyncIterator[BrokerControl]:
    client = BrokerControl.connect(broker.socket)
    try:
        yield client
    finally:
        client.close()


async def signer(client: BrokerControl, sandbox: str = ONE, generation: int = 1, template: int = 1) -> Signer:
    theirs, ours = pair()
    await client.bind_sandbox(theirs, sandbox, generation, "base", template)
    return Signer(ours)


async def voucher(client: BrokerControl, *writers: str) -> Voucher:
    theirs, ours = pair()
    await client.bind_writer(theirs, writers or ("gateway",))
    return Voucher(ours)


def certificates(chain: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(chain)


def handshake(root: bytes, chain: bytes, key: bytes, name: str, directory: Path) -> None:
    (directory / "chain.pem").write_bytes(chain + key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "chain.pem")
    client = ssl.create_default_context(cadata=root.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server, server_hostname=name), server.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


async def test_a_worker_gets_a_leaf_that_a_guest_of_its_template_trusts_for_that_name_only(broker: BrokerProcess, tmp_path: Path) -> None:
    async with control(broker) as client:
        root = await client.make_root("base", 1)
        other_root = await client.make_root("base", 2)
        assert await client.make_root("base", 1) == root == await client.root("base", 1)
        chain, key = await (await signer(client)).leaf(NAME)
        assert len(certificates(chain)) == 2, "the root is not sent"
        handshake(root, chain, key, NAME, tmp_path)
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(root, chain, key, "www.example.org", tmp_path)
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(other_root, chain, key, NAME, tmp_path)


@pytest.mark.parametrize(
    "name", ["WWW.example.com", "www.example.com.", "*.example.com", "10.0.0.1", "a b", "x" * 64 + ".com", "-a.com", "a\0b"]
)
async def test_only_a_canonical_name_gets_a_leaf(broker: BrokerProcess, name: str) -> None:
    async with control(broker) as client:
        await client.make_root("base", 1)
        worker = await signer(client)
        with pytest.raises(InvalidArgument):
            await worker.leaf(name)
        assert (await worker.leaf(NAME))[0], "the socket lives on"


async def test_two_sandboxes_and_two_lives_have_nothing_in_common(broker: BrokerProcess) -> None:
    async with control(broker) as client:
        await client.make_root("base", 1)
        first, neighbour = await signer(client), await signer(client, OTHER)
        chain, key = await first.leaf(NAME)
        again, same_key = await first.leaf("b.example.com")
        assert key == same_key, "one key a life"
        assert certificates(chain)[1] == certificates(again)[1]
        theirs, their_key = await neighbour.leaf(NAME)
        later = await signer(client, ONE, 2)
        new_chain, new_key = await later.leaf(NAME)
        assert len({key, their_key, new_key}) == 3
        assert len({certificates(one)[1].public_key().public_numbers() for one in (chain, theirs, new_chain)}) == 3  # type: ignore[union-attr]
        with pytest.raises(Unavailable):
            await first.leaf(NAME)
        with pytest.raises(Gone):
            await signer(client, ONE, 1)
        with pytest.raises(NotFound):
            await signer(client, ONE, 3, template=9)
        await client.end_sandbox(ONE, 2)
        with pytest.raises(Unavailable):
            await later.leaf(NAME)
        with pytest.raises(Gone):
            await signer(client, ONE, 2)
        await neighbour.leaf(NAME)


async def test_a_worker_that_follows_another_has_the_life_s_key_and_the_old_socket_is_closed(broker: BrokerProcess) -> None:
    async with control(broker) as client:
        await client.make_root("base", 1)
        first = await signer(client)
        leaf = await first.leaf(NAME)
        second = await signer(client)
        assert await second.leaf(NAME) == leaf
        with pytest.raises(Unavailable):
            await first.leaf(NAME)


async def test_a_socket_that_nobody_registered_and_one_of_another_kind_are_refused(broker: BrokerProcess) -> None:
    async with control(broker) as client:
        await client.make_root("base", 1)
        worker = await signer(client)
        loop = asyncio.get_running_loop()
        questions = (
            api.GetHead(1, "gateway"),
            api.MakeRoot(1, "x", 1),
            api.EndSandbox(1, OTHER, 1),
            api.Vouch(1, "gateway", "head", 1, HASH[1]),
        )
        for question in questions:
            theirs, raw = pair()
            raw.setblocking(False)
            await client.bind_sandbox(theirs, ONE, 1, "base", 1)
            send_with(raw, api.encode(question), None)
            assert await loop.sock_recv(raw, 100) == b"", f"{type(question).__name__} over a sandbox's socket"
            raw.close()
        worker.close()
        stranger = Signer(_connected(broker.socket))
        with pytest.raises(Unavailable):
            await stranger.leaf(NAME)
        stream, far = socket.socketpair()
        with pytest.raises(InvalidArgument, match="SEQPACKET"):
            await client.bind_sandbox(stream, ONE, 1, "base", 1)
        far.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another uid")
def test_another_uid_is_hung_up_on(broker: BrokerProcess) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "broker.sock"
        path.parent.chmod(0o711)
        broker.socket.rename(path)
        path.chmod(0o666)
        assert _asked_by_another_uid(path) == 0


def _asked_by_another_uid(path: Path) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
            sock = _connected(path)
            try:
                sock.send(api.encode(api.MakeRoot(1, "base", 1)))
                status = 0 if sock.recv(100) == b"" else 2
            except (BrokenPipeError, ConnectionResetError):
                status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(path))
    return sock


async def test_a_root_that_was_told_outlives_any_kill(broker: BrokerProcess) -> None:
    told: dict[int, bytes] = {}
    for attempt in range(4):
        async with control(broker) as client:
            asking = asyncio.create_task(_make_many(client, told, 100 * attempt))
            while len(told) < 10 * (attempt + 1):  # noqa: ASYNC110 - the kill comes at some moment, not at an answer
                await asyncio.sleep(0)
            broker.kill()
            with pytest.raises(Unavailable):
                await asking
        broker.start()
        async with control(broker) as client:
            for generation, pem in told.items():
                assert await client.root("base", generation) == pem


async def _make_many(client: BrokerControl, told: dict[int, bytes], begin: int) -> None:
    for generation in range(begin, begin + 100_000):
        told[generation] = await client.make_root("base", generation)


async def test_a_head_never_goes_back_also_not_after_a_kill(broker: BrokerProcess) -> None:
    async with control(broker) as client:
        keeper = await voucher(client)
        public = PublicKey(await keeper.head_key())
        mac = await keeper.vouch("gateway", "head", 5, HASH[5])
        assert public.holds(statement("gateway", 5, HASH[5]), mac)
        assert not public.holds(statement("dialer", 5, HASH[5]), mac)
        assert not public.holds(base_statement("gateway", 5, HASH[5]), mac)
        assert await keeper.vouch("gateway", "head", 5, HASH[5]) == mac
        for count, last in ((4, HASH[4]), (5, HASH[6]), (0, bytes(32))):
            with pytest.raises(Conflict, match="at record 5"):
                await keeper.vouch("gateway", "head", count, last)
        with pytest.raises(PermissionDenied, match="not for dialer"):
            await keeper.vouch("dialer", "head", 1, HASH[1])
        with pytest.raises(PermissionDenied, match="cannot be removed"):
            await keeper.vouch("gateway", "base", 6, HASH[6])
        await keeper.vouch("gateway", "base", 3, HASH[3])
        with pytest.raises(Conflict):
            await keeper.vouch("gateway", "base", 2, HASH[2])
    broker.kill()
    assert "would go back" in broker.log.read_text(), "it is told"
    broker.start()
    async with control(broker) as client:
        keeper = await voucher(client)
        assert await keeper.head("gateway") == (5, HASH[5])
        with pytest.raises(Conflict):
            await keeper.vouch("gateway", "head", 4, HASH[4])
        assert PublicKey(await client.head_key()).holds(statement("gateway", 5, HASH[5]), mac), "the key is the same one"
        await client.begin_anew("gateway")
        await keeper.vouch("gateway", "head", 1, HASH[1])


async def test_a_flood_of_one_sandbox_is_limited_and_does_not_hold_up_another(broker: BrokerProcess) -> None:
    async with control(broker) as client:
        await client.make_root("base", 1)
        flood, quiet = await signer(client), await signer(client, OTHER)
        asked = [asyncio.create_task(flood.leaf(f"h{number}.example.com")) for number in range(900)]
        await quiet.leaf(NAME)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [one for one in answers if isinstance(one, RateLimited)]
        assert len(refused) > 300
        assert len(answers) - len(refused) >= 300, "the burst is served"
        last = max(number for number, one in enumerate(answers) if not isinstance(one, BaseException))
        assert await flood.leaf(f"h{last}.example.com") == answers[last], "what is kept costs nothing"


async def test_whoever_reads_no_answers_stops_only_itself_and_gets_them_all_when_it_reads(broker: BrokerProcess) -> None:
    async with control(broker) as client:
        await client.make_root("base", 1)
        theirs, raw = pair()
        await client.bind_sandbox(theirs, ONE, 1, "base", 1)
        raw.setblocking(False)
        sent = quiet_since = 0
        other = await signer(client, OTHER)
        while quiet_since < 20:  # answered neighbours without room for another question: nobody takes them any more
            try:
                raw.send(api.encode(api.AskLeaf(sent + 1, NAME)))
                sent, quiet_since = sent + 1, 0
            except BlockingIOError:
                await other.leaf(NAME)
                quiet_since += 1
        assert sent < 2000
        loop = asyncio.get_running_loop()
        for number in range(1, sent + 1):
            assert msgspec.msgpack.decode(await loop.sock_recv(raw, 65_536))["id"] == number
        raw.close()


async def test_the_process_leaves_no_core_and_is_locked_where_it_can_be(broker: BrokerProcess) -> None:
    assert broker.process is not None
    proc = Path(f"/proc/{broker.process.pid}")
    assert "Max core file size        0                    0" in proc.joinpath("limits").read_text()
    if os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        status = dict(line.split(":", 1) for line in proc.joinpath("status").read_text().splitlines())
        locked = int(status["VmLck"].split()[0])
        assert locked > 0 or "memory is not locked" in broker.log.read_text()


def forms(key: ec.EllipticCurvePrivateKey) -> list[bytes]:
    """Everything that a leak of it could look like."""
    raw = key.private_numbers().private_value.to_bytes(32, "big")
    der = key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    body = b"".join(private_pem(key).splitlines()[1:-1])
    plain = [raw, raw[::-1], raw.hex().encode(), raw.hex().upper().encode(), str(int.from_bytes(raw, "big")).encode()]
    return [*plain, base64.b64encode(raw)[:40], der, body[:60], body[60:120]]


async def test_no_answer_log_line_or_file_holds_a_key_of_an_authority(broker: BrokerProcess, tmp_path: Path) -> None:
    """Every byte that the broker sends is kept by a socket between it and its clients; its keys are read from its store afterwards."""
    seen = bytearray()
    async with control(broker) as client:
        client._asker._packets._receive = _kept(seen, client._asker._packets._receive)
        await client.make_root("base", 1)
        await client.head_key()
        worker, keeper = await signer(client), await voucher(client)
        for one in (worker, keeper):
            one._asker._packets._receive = _kept(seen, one._asker._packets._receive)
        _, leaf_key = await worker.leaf(NAME)
        for wrong in ("A", "a..b"):
            with pytest.raises(InvalidArgument):
                await worker.leaf(wrong)
        await keeper.vouch("gateway", "head", 3, HASH[3])
        with pytest.raises(Conflict):
            await keeper.vouch("gateway", "head", 1, HASH[1])
        with pytest.raises(NotFound):
            await client.root("base", 7)
    broker.stop()
    ring = keyring.read(broker.keyring)
    store = Store(broker.data / "store.db", ring)
    root, heads = store.get("root", "base", 1), store.get("audit", "heads", 1)
    store.close()
    assert root is not None
    assert heads is not None
    key = load_authority(root.public, root.secret.reveal()).key
    needles = [*forms(key), heads.secret.reveal(), heads.secret.reveal().hex().encode(), base64.b64encode(heads.secret.reveal())[:40]]
    assert leaf_key in seen, "the search sees what was sent"
    hay = {"answers": bytes(seen), "log": broker.log.read_bytes(), **{str(file): file.read_bytes() for file in broker.data.iterdir()}}
    for name, data in hay.items():
        for needle in needles:
            assert needle not in data, name
        assert ring_key(broker.keyring) not in data, name


def _kept(seen: bytearray, receive):  # type: ignore[no-untyped-def]
    def both(message: bytes, descriptor: int | None) -> None:
        seen.extend(message)
        receive(message, descriptor)

    return both


def ring_key(path: Path) -> bytes:
    return path.read_bytes().strip()


class Clock:
    def __init__(self) -> None:
        self.at = datetime.now(UTC)

    def now(self) -> datetime:
        return self.at

    def seconds(self) -> float:
        return self.at.timestamp()


def in_process(tmp_path: Path, **limits: int) -> tuple[Lives, Roots, Clock]:
    clock = Clock()
    roots = Roots(Store(tmp_path / "store.db", Keyring([Secret(b"k" * 32)])))
    roots.make("base", 1, clock.at)
    return Lives(roots, clock.now, clock.seconds, lives.Limits(**limits)), roots, clock


def test_no_repr_holds_a_key(tmp_path: Path) -> None:
    held, roots, _ = in_process(tmp_path)
    held.begin(ONE, 1, ("base", 1))
    leaf = held.leaf(ONE, 1, NAME)
    life = held._lives[ONE]
    assert life.intermediate is not None
    entry = roots._store.get("root", "base", 1)
    shown = repr([leaf, life, life.intermediate, entry, held, roots, roots._store, api.LeafOf(1, b"c", leaf.key.reveal())]).encode()
    for key in (life.key, life.intermediate.key, roots.authority("base", 1).key):
        for needle in forms(key):
            assert needle not in shown


def test_an_intermediate_is_renewed_before_a_leaf_would_be_cut_short(tmp_path: Path) -> None:
    held, _, clock = in_process(tmp_path)
    held.begin(ONE, 1, ("base", 1))
    seen = set()
    for _ in range(24 * 21):
        clock.at += timedelta(hours=1)
        leaf, intermediate = certificates(held.leaf(ONE, 1, NAME).chain)
        seen.add(intermediate.serial_number)
        assert leaf.not_valid_after_utc - clock.at > timedelta(hours=6)
        assert leaf.not_valid_after_utc <= intermediate.not_valid_after_utc
        leaf.verify_directly_issued_by(intermediate)
    assert 3 <= len(seen) <= 6, "five of seven days each"


def test_leaves_are_kept_up_to_a_bound_and_dropped_with_the_life(tmp_path: Path) -> None:
    held, _, _ = in_process(tmp_path, leaves=3)
    held.begin(ONE, 1, ("base", 1))
    first = held.leaf(ONE, 1, "a.example.com")
    assert held.leaf(ONE, 1, "a.example.com") is first
    for number in range(5):
        held.leaf(ONE, 1, f"h{number}.example.com")
    assert len(held._lives[ONE].leaves) == 3
    assert held.leaf(ONE, 1, "a.example.com") is not first
    assert held.end(ONE, 1)
    assert not held.end(ONE, 1)
    assert len(held) == 0
    with pytest.raises(Gone):
        held.leaf(ONE, 1, "a.example.com")


def test_a_late_end_of_an_earlier_life_leaves_the_present_one(tmp_path: Path) -> None:
    held, _, _ = in_process(tmp_path)
    held.begin(ONE, 1, ("base", 1))
    held.begin(ONE, 2, ("base", 1))
    assert not held.end(ONE, 1)
    held.leaf(ONE, 2, NAME)


def test_a_wrong_ring_and_an_open_directory_do_not_start(broker: BrokerProcess) -> None:
    broker.stop()
    right = broker.keyring.read_text()
    broker.data.chmod(0o750)
    with pytest.raises(RuntimeError, match="mode 0750"):
        broker.start()
    broker.data.chmod(0o700)
    broker.keyring.write_text("ab" * 32 + "\n")
    with pytest.raises(RuntimeError, match="not in the ring"):
        broker.start()
    broker.keyring.write_text("cd" * 32 + "\n" + right)
    broker.start()
    assert "wrapped anew" in broker.log.read_text()
    broker.stop()
    broker.keyring.write_text("cd" * 32 + "\n")
    broker.start()


def test_heads_begin_at_nothing(tmp_path: Path) -> None:
    heads = Heads(Store(tmp_path / "s.db", Keyring([Secret(b"k" * 32)])))
    assert heads.at("gateway") == (0, bytes(32))
    with pytest.raises(Conflict):
        heads.vouch("gateway", "head", 0, HASH[1])
    heads.vouch("gateway", "head", 0, bytes(32))
