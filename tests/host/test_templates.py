"""Templates of an instance by rootd's operations: kept of a sandbox, rebased, imported, dropped; whole or not there, whatever dies."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import stat
from dataclasses import replace

import pytest

from space.config.artefacts import Store, TemplateManifest
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.rootd import KeepTemplate, RebaseTemplate, SealTemplate, StageTemplate
from space.rpc.rootd_client import RootdClient
from space.testing.roothost import DIES, STAYS, RootHost

PROGRAM = """
import os, sys
from space.rootd import server, templates
def reached(step):
    if step == {step!r}:
        os.kill(os.getpid(), 9)
templates.reached = reached
sys.exit(server.main())
"""
STEPS = (
    "template staged",
    "template copied",
    "template described",
    "template committed",
    "import staged",
    "import sealed",
    "template gone",
)
ONE, TWO = "1" * 32, "2" * 32
SETTINGS = TemplateManifest(
    "mine", ONE, ONE, ONE, ONE, 0, 1, "", "test", tenant="acme", env={"KEY": "secret-value"}, start=("serve",)
).settings()


def store(host: RootHost) -> Store:
    return Store(host.instance.artefacts, host.instance.templates)


def keep(host: RootHost, sandbox: str, digest: str = ONE) -> None:
    host.ask(lambda client: client.keep_template(KeepTemplate(sandbox, 1, digest, SETTINGS)))


def test_sandboxes_disk_becomes_a_template_that_others_stand_on(host: RootHost) -> None:
    first = host.prepare(disk_mib=16)
    disk = host.instance.sandboxes / first.sandbox / "disk.img"
    with disk.open("r+b") as file:
        file.write(b"changed")
    keep(host, first.sandbox)
    keep(host, first.sandbox)
    manifest = store(host).template_by_digest(ONE)
    assert (manifest.tenant, manifest.env, manifest.start) == ("acme", {"KEY": "secret-value"}, ("serve",))
    assert (manifest.parent, manifest.kernel, manifest.qemu, manifest.disk_bytes) == (STAYS, STAYS, STAYS, 16 << 20)
    kept = host.instance.templates / ONE
    assert stat.S_IMODE((kept / "disk.img").stat().st_mode) == 0o400
    facts = (kept / "manifest.json").stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (0, host.instance.node_uid, 0o440)
    with disk.open("r+b") as file:
        file.write(b"later!!")
    assert (kept / "disk.img").read_bytes()[:7] == b"changed"
    assert "secret-value" not in host.log.read_text()


def test_template_boots_as_the_one_does_that_it_is_put_onto(host: RootHost) -> None:
    sandbox = host.prepare().sandbox
    keep(host, sandbox)
    host.ask(lambda client: client.rebase_template(RebaseTemplate(ONE, DIES, TWO, SETTINGS)))
    manifest = store(host).template_by_digest(TWO)
    assert (manifest.kernel, manifest.parent) == (DIES, DIES)
    with pytest.raises(NotFound):
        host.ask(lambda client: client.rebase_template(RebaseTemplate("f" * 32, DIES, "3" * 32, SETTINGS)))


def test_disk_that_comes_as_a_file_is_a_template_only_when_it_is_sealed(host: RootHost) -> None:
    descriptor = host.ask(lambda client: client.stage_template(StageTemplate(ONE, 1)))
    os.pwrite(descriptor, b"imported", 0)
    assert store(host).own_templates() == []
    host.ask(lambda client: client.seal_template(SealTemplate(ONE, STAYS, SETTINGS)))
    os.pwrite(descriptor, b"too late", 0)  # whoever wrote it cannot write the template
    os.close(descriptor)
    reader = host.ask(lambda client: client.open_template(ONE))
    assert os.pread(reader, 8, 0) == b"imported"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(reader, b"x", 0)
    os.close(reader)
    with pytest.raises(NotFound):
        host.ask(lambda client: client.seal_template(SealTemplate(TWO, STAYS, SETTINGS)))
    assert [entry.name for entry in host.instance.templates.iterdir()] == [ONE]


def test_template_with_sandboxes_stays_unless_forced(host: RootHost) -> None:
    first = host.prepare()
    keep(host, first.sandbox)
    host.ask(lambda client: client.destroy_sandbox(first.sandbox, 1))
    of_it = replace(first, template=ONE)
    host.ask(lambda client: client.create_sandbox(of_it))
    with pytest.raises(Conflict, match=f"1 sandboxes, {first.sandbox} among them"):
        host.ask(lambda client: client.drop_template(ONE))
    host.ask(lambda client: client.drop_template(ONE, force=True))
    host.ask(lambda client: client.drop_template(ONE))
    assert list(host.instance.templates.iterdir()) == []
    with pytest.raises(NotFound):
        host.ask(lambda client: client.open_template(ONE))


def test_settings_that_are_not_exactly_the_authors_are_refused(host: RootHost) -> None:
    sandbox = host.prepare().sandbox
    for settings in ("", "[]", json.dumps(json.loads(SETTINGS) | {"kernel": DIES}), json.dumps({"name": "x"})):
        wrong = KeepTemplate(sandbox, 1, ONE, settings)
        with pytest.raises(InvalidArgument):
            host.ask(functools.partial(RootdClient.keep_template, request=wrong))
    assert list(host.instance.templates.iterdir()) == []


def test_what_a_killed_rootd_left_is_removed_by_the_next(host: RootHost) -> None:
    keep(host, host.prepare().sandbox)
    os.close(host.ask(lambda client: client.stage_template(StageTemplate(TWO, 1))))
    (host.instance.templates / ".stage-x").mkdir()
    assert host.rootd is not None
    host.rootd.send_signal(signal.SIGKILL)
    host.rootd.wait()
    host.start_rootd()
    assert [entry.name for entry in host.instance.templates.iterdir()] == [ONE]


def test_template_of_an_older_version_is_put_onto_what_this_machine_has(host: RootHost) -> None:
    keep(host, host.prepare().sandbox)
    path = host.instance.templates / ONE / "manifest.json"
    old = json.loads(path.read_text()) | {"version": 1, "root": "f" * 64, "kernel": "0" * 32}
    del old["hooks"]
    path.write_text(json.dumps(old))
    with pytest.raises(Conflict, match="cannot be used"):
        store(host).template_by_digest(ONE)
    [(broken, error)] = store(host).unusable_templates()
    assert (broken.tenant, broken.start, error.hint is None) == ("acme", ("serve",), False)
    host.ask(lambda client: client.rebase_template(RebaseTemplate(ONE, STAYS, TWO, broken.settings())))
    made = store(host).template_by_digest(TWO)
    assert (made.kernel, made.root, made.start, made.tenant) == (STAYS, "f" * 64, ("serve",), "acme")


def test_template_that_somebody_stands_on_was_used_now(host: RootHost) -> None:
    first = host.prepare()
    keep(host, first.sandbox)
    os.utime(host.instance.templates / ONE, (1, 1))
    host.ask(lambda client: client.destroy_sandbox(first.sandbox, 1))
    host.ask(lambda client: client.create_sandbox(replace(first, template=ONE)))
    assert (host.instance.templates / ONE).stat().st_mtime > 1e9


@pytest.mark.parametrize("step", STEPS)
def test_template_is_whole_or_not_there_wherever_rootd_is_killed(host: RootHost, step: str) -> None:
    """A kept step, an import and a drop, each cut off, then done again by the next rootd."""
    sandbox = host.prepare().sandbox
    keep(host, sandbox, TWO)
    host.stop_rootd()
    host.start_rootd(program=("-c", PROGRAM.format(step=step)))

    async def work(client: RootdClient) -> None:
        if step == "template gone":
            await client.drop_template(TWO)
        elif step.startswith("import"):
            os.close(await client.stage_template(StageTemplate(ONE, 1)))
            await client.seal_template(SealTemplate(ONE, STAYS, SETTINGS))
        else:
            await client.keep_template(KeepTemplate(sandbox, 1, ONE, SETTINGS))

    async def killed(client: RootdClient) -> None:
        asked = asyncio.create_task(work(client))
        assert host.rootd is not None
        await asyncio.to_thread(host.rootd.wait, 20)
        there = {entry.name for entry in host.instance.templates.iterdir() if not entry.name.startswith(".")}
        assert {each.digest for each in store(host).own_templates()} == there, "what has a name is whole"
        await asyncio.to_thread(host.start_rootd)
        await asyncio.wait_for(asked, 20)

    host.ask(killed)
    wanted = set() if step == "template gone" else {ONE, TWO}
    assert {entry.name for entry in host.instance.templates.iterdir()} == wanted
    assert {each.digest for each in store(host).own_templates()} == wanted
