"""A root that set-up made is adopted once, sealed, and only if it is the one that the template's disk trusts."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.broker.test_broker import NAME, ONE, OTHER, handshake

from space.broker.certificates import Authority, fingerprint, make_root, private_pem
from space.broker.server import STORE
from space.model.errors import Conflict, NotFound, SpaceError
from space.rpc.broker_client import BrokerControl, Signer
from space.rpc.packets import pair
from space.testing.brokerprocess import BrokerProcess

TEMPLATE = "ab" * 16


@pytest.fixture
def root() -> Authority:
    return make_root("base", datetime.now(UTC))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    (tmp_path / "roots").mkdir(mode=0o700)
    process.arguments += ["--roots", str(tmp_path / "roots")]
    process.start()
    yield process
    process.stop()


def provide(directory: Path, root: Authority, *, named: str | None = None, key: bytes | None = None) -> Path:
    """As rootd does."""
    path = directory / "roots" / f"{TEMPLATE}.pem"
    head = (named or fingerprint(root.certificate)).encode() + b"\n"
    path.write_bytes(head + root.pem + (private_pem(root.key) if key is None else key))
    path.chmod(0o400)
    return path


def holding(directory: Path, secret: bytes) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and secret in path.read_bytes()]


async def bound(client: BrokerControl, sandbox: str = ONE) -> Signer:
    theirs, ours = pair()
    await client.bind_sandbox(theirs, sandbox, 1, TEMPLATE, 0)
    return Signer(ours)


async def test_a_provided_root_is_sealed_its_file_goes_and_its_leaves_are_what_the_disk_trusts(
    broker: BrokerProcess, root: Authority, tmp_path: Path
) -> None:
    client = BrokerControl.connect(broker.socket)
    with pytest.raises(NotFound, match="no root of template"):
        await bound(client)
    file = provide(tmp_path, root)
    chain, key = await (await bound(client)).leaf(NAME)
    handshake(root.pem, chain, key, NAME, tmp_path)
    assert not file.exists()
    assert not holding(tmp_path, private_pem(root.key).splitlines()[1])
    client.close()

    broker.kill()  # what was answered for is on the disk
    broker.start()
    client = BrokerControl.connect(broker.socket)
    provide(tmp_path, root)  # again, as a node does that does not know
    chain, key = await (await bound(client)).leaf(NAME)
    handshake(root.pem, chain, key, NAME, tmp_path)
    assert not file.exists()
    client.close()
    with closing(sqlite3.connect(tmp_path / "broker" / STORE)) as store:
        assert store.execute("SELECT count(*) FROM sealed WHERE kind = 'root'").fetchone() == (1,)


async def test_a_root_that_the_disk_does_not_trust_is_refused_and_forgotten(broker: BrokerProcess, root: Authority, tmp_path: Path) -> None:
    client = BrokerControl.connect(broker.socket)
    other = make_root("base", datetime.now(UTC))
    for faulty in (
        {"named": fingerprint(other.certificate)},
        {"named": "x"},
        {"key": private_pem(other.key)},
        {"key": b""},
        {"key": b"\xff" * 20_000},
    ):
        file = provide(tmp_path, root, **faulty)
        with pytest.raises(Conflict, match="the root that was provided for template") as caught:
            await bound(client)
        assert "BEGIN" not in str(caught.value)
        assert not file.exists()
    provide(tmp_path, root)
    await (await bound(client)).leaf(NAME)
    client.close()


async def test_what_lies_there_instead_of_a_file_is_not_followed(broker: BrokerProcess, root: Authority, tmp_path: Path) -> None:
    client = BrokerControl.connect(broker.socket)
    file = provide(tmp_path, root)
    aside = file.rename(tmp_path / "aside.pem")
    file.symlink_to(aside)
    with pytest.raises(SpaceError):
        await bound(client)
    assert aside.exists()
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    with pytest.raises(Conflict):
        await bound(client)  # and does not wait for who writes into it
    provide(tmp_path, root)
    await (await bound(client, OTHER)).leaf(NAME)
    client.close()
