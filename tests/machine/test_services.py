"""The services of egress are part of an instance: there, apart from one another, started again, and gone with it; guests trust its root."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import space
from space.config import services
from space.config.artefacts import CERTIFICATE, KEY, Store
from space.config.instance import Instance
from space.host.syscalls import CAP_SETGID, CAP_SETUID
from space.model.ids import new_sandbox_id
from space.rpc.audit_client import AuditControl
from space.rpc.broker_client import BrokerControl, Signer
from space.rpc.packets import pair
from space.rpc.rootd_client import RootdClient
from space.serve import records
from space.serve.private import Served
from space.testing import machine
from space.testing.machine import Server

NAME = "www.example.com"
NEW = ("broker", "audit", "dialer", "minter", "gateway")


def pids(instance: Instance) -> dict[str, int]:
    return {record.role: record.pid for record in records.load(instance.services)}


def status(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def test_each_has_a_uid_of_its_own_and_no_way_to_more(served: Served) -> None:
    instance = served.instance
    found = pids(instance)
    assert set(found) == set(services.NAMES)
    uids = {role: status(pid)["Uid"].split() for role, pid in found.items()}
    expected = {role: getattr(instance, f"{role}_uid") for role in services.NAMES if role != "rootd"}
    assert {role: set(uids[role]) for role in expected} == {role: {str(uid)} for role, uid in expected.items()}
    for role in NEW:
        facts = status(found[role])
        assert (facts["NoNewPrivs"], facts["Groups"].strip()) == ("1", "")
        allowed = 1 << CAP_SETUID | 1 << CAP_SETGID if role == "gateway" else 0
        assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {allowed}
        assert int(facts["CapAmb"], 16) == 0
    ours, gateways = (Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", found["gateway"]))
    assert ours != gateways
    interfaces = Path(f"/proc/{found['gateway']}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    keyring = instance.broker_keyring.stat()
    assert (keyring.st_uid, stat.S_IMODE(keyring.st_mode)) == (instance.broker_uid, 0o600)


async def _answers(instance: Instance) -> None:
    broker, audit = BrokerControl.connect(instance.broker_socket), AuditControl.connect(instance.audit_socket)
    assert len(await broker.head_key()) == 32
    assert {chain.writer for chain in (await audit.status()).chains} == {"gateway", "dialer", "broker"}
    broker.close()
    audit.close()


def test_one_that_is_killed_is_started_again_and_a_sandbox_runs_on(server: Callable[[], Server]) -> None:
    one = server()
    served = one.served
    assert served is not None
    with space.Sandbox.create(api_url=served.url, api_key=served.api_key, memory_mib=256) as sandbox:
        key = one.instance.broker_keyring.read_bytes()
        for role in NEW:
            before = one.kill(role)
            deadline = time.monotonic() + 20
            while one.pid(role) == before:
                assert time.monotonic() < deadline, f"{role} is not started again"
                time.sleep(0.02)
            assert sandbox.run("echo on", check=True).stdout == b"on\n"
        asyncio.run(_answers(one.instance))
        running = pids(one.instance)
        one.kill("serve")
        one.start()
        assert pids(one.instance) == running
        asyncio.run(_answers(one.instance))
        assert one.instance.broker_keyring.read_bytes() == key


def test_two_instances_have_nothing_in_common(server: Callable[[], Server]) -> None:
    one, other = server(), server()
    assert not set(pids(one.instance).values()) & set(pids(other.instance).values())
    assert one.instance.broker_keyring.read_bytes() != other.instance.broker_keyring.read_bytes()
    one.close()
    asyncio.run(_answers(other.instance))


async def _chain(instance: Instance, template: str) -> tuple[bytes, bytes]:
    """As the node and a worker do it."""
    rootd, broker = RootdClient(instance.rootd_socket), BrokerControl.connect(instance.broker_socket)
    await rootd.provide_root(template)
    theirs, ours = pair()
    sandbox = new_sandbox_id()
    await broker.bind_sandbox(theirs, sandbox, 1, template, 0)
    signer = Signer(ours)
    made = await signer.leaf(NAME)
    signer.close()
    await broker.end_sandbox(sandbox, 1)
    broker.close()
    await rootd.aclose()
    return made


def test_a_leaf_of_the_instances_broker_verifies_in_a_guest_of_the_template(served: Served, shared: space.Sandbox) -> None:
    manifest = Store(served.instance.artefacts).template("base")
    chain, _ = asyncio.run(_chain(served.instance, manifest.digest))
    assert list(served.instance.broker_roots.iterdir()) == []  # adopted, sealed
    leaf, _, intermediate = chain.decode().partition("-----END CERTIFICATE-----\n")
    shared.files.write("/tmp/leaf.pem", f"{leaf}-----END CERTIFICATE-----\n")
    shared.files.write("/tmp/intermediate.pem", intermediate)
    check = "openssl verify -purpose sslserver -untrusted /tmp/intermediate.pem -verify_hostname {} {} /tmp/leaf.pem"
    for store in ("", "-CAfile $SSL_CERT_FILE"):
        assert shared.run(check.format(NAME, store), check=True).stdout == b"/tmp/leaf.pem: OK\n"
        assert shared.run(check.format("www.example.org", store)).exit_code != 0
    assert shared.run(check.format(NAME, "-no-CApath -no-CAstore -CAfile /dev/null")).exit_code != 0
    # its key is where root alone reads it, and in no guest
    place = Store(served.instance.artefacts).authority(manifest.root)
    assert stat.S_IMODE((place / KEY).stat().st_mode) == 0o400
    certificate = (place / CERTIFICATE).read_text()
    assert shared.run("cat /usr/local/share/ca-certificates/space.crt", check=True).stdout.decode() == certificate


@pytest.mark.parametrize(
    "words",
    [
        ["env"],
        ["bash", "-lc", "env"],
        ["env", "-i", "bash", "-lc", "/usr/bin/env"],
        ["sudo", "env"],
        ["sudo", "-i", "env"],
        ["sudo", "su", "-", "user", "-c", "env"],
    ],
    ids=" ".join,
)
def test_every_way_into_a_guest_has_the_variables_that_trust_the_root(shared: space.Sandbox, words: list[str]) -> None:
    found = dict(line.partition("=")[::2] for line in shared.run(words, check=True).stdout.decode().splitlines())
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO"):
        assert found.get(name) == bundle, name
    assert found.get("NODE_EXTRA_CA_CERTS") == "/usr/local/share/ca-certificates/space.crt"
    assert found.get("DENO_TLS_CA_STORE") == "system"


def test_what_a_caller_sets_stands_over_the_template(shared: space.Sandbox) -> None:
    said = shared.run(["bash", "-lc", "echo $SSL_CERT_FILE"], env={"SSL_CERT_FILE": "/mine.pem"}, check=True).stdout
    assert said == b"/mine.pem\n"
    assert shared.run("cat /etc/resolv.conf", check=True).stdout == b"nameserver 10.0.0.1\n"


def test_the_roots_key_is_in_no_file_of_the_root_disk(served: Served, tmp_path: Path) -> None:
    manifest = Store(served.instance.artefacts).template("base")
    store = Store(served.instance.artefacts)
    disk = store.path("template", manifest.digest) / "disk.img"
    bundle = subprocess.run(["debugfs", "-R", "cat /etc/ssl/certs/ca-certificates.crt", disk], capture_output=True, check=True).stdout
    assert (store.authority(manifest.root) / CERTIFICATE).read_bytes() in bundle
    secret = (store.authority(manifest.root) / KEY).read_bytes().splitlines()[1]
    with disk.open("rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            file.seek(max(0, at - 128))
            assert secret not in file.read(end - at + 128)
            at = end


def test_logs_are_json_objects_with_the_services_name_when_asked(server: Callable[..., Server]) -> None:
    one = server(log_format="json")
    one.stop()
    for role in services.NAMES:
        lines = [json.loads(line) for line in (one.instance.log / f"{role}.log").read_text().splitlines()]
        assert {line["service"] for line in lines} == {role}, role
    assert machine.vmm_pids(one.instance) == []
