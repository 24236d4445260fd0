"""Templates through E2B's SDKs: built of steps and files, followed, found, tagged, forgotten; and snapshots, from which sandboxes begin."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.e2b.stage import Js, Running

import e2b
import space
from e2b import Sandbox, Template, wait_for_file, wait_for_timeout


def _name(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def _said(server: Running, sandbox_id: str, command: str) -> str:
    """What a command says, by our own SDK."""
    with server.ours() as client:
        found = space.Sandbox.connect("sb-" + sandbox_id[1:], client=client)
        return found.run(["sh", "-c", command]).stdout.decode()


def test_a_template_is_built_of_steps_and_files(server: Running, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/main.py").write_text("print('hello')\n")
    (tmp_path / "app/inner").mkdir()
    (tmp_path / "app/inner/data.txt").write_text("data")
    (tmp_path / "one.txt").write_text("one")
    template = (
        Template(file_context_path=tmp_path)
        .from_base_image()
        .set_envs({"GREETING": "hi there"})
        .copy("app", "/opt/app", user="root")
        .copy("one.txt", "notes/", mode=0o640)
        .copy("one.txt", "/home/user/renamed.txt")
        .run_cmd('echo "$GREETING" > /home/user/greeting && whoami >> /home/user/greeting && pwd >> /home/user/greeting')
        .set_workdir("/home/user/work")
        .run_cmd("pwd > where")
        .set_user("root")
        .run_cmd("id -un > /var/who")
        .set_user("user")
        .make_dir("/home/user/made")
        .set_start_cmd("echo started > /tmp/started && sleep 1000", wait_for_file("/tmp/started"))
    )
    logs: list[str] = []
    name = _name("steps")
    made = Template.build(template, name, cpu_count=2, memory_mb=768, tags=["stable"], on_build_logs=lambda entry: logs.append(str(entry)))
    assert (made.name, made.template_id, made.tags) == (name, name, ["stable"])
    assert any("RUN" in line for line in logs)
    with Sandbox.create(f"{name}:stable") as sandbox:
        info = sandbox.get_info()
        assert (info.cpu_count, info.memory_mb, info.template_id) == (2, 768, f"{name}:stable")
        script = (
            # one of a size that is not kept warm boots, and its start command with it
            "for i in $(seq 100); do test -s /tmp/started && break; sleep 0.1; done; "
            "cat /home/user/greeting /home/user/work/where /var/who /opt/app/main.py /opt/app/inner/data.txt; "
            "stat -c '%U %a' /home/user/notes/one.txt /opt/app/main.py; cat /home/user/renamed.txt /tmp/started; "
            'test -d /home/user/made && echo made; echo "[$GREETING]"; pgrep -x sleep >/dev/null && echo runs'
        )
        said = _said(server, sandbox.sandbox_id, script)
        assert said.split("\n") == [
            "hi there", "user", "/home/user", "/home/user/work", "root", "print('hello')", "datauser 640", "root 644",
            "onestarted", "made", "[]", "runs", "",
        ]  # fmt: skip
    assert Template.exists(name)
    again: list[str] = []
    Template.build(template, name, on_build_logs=lambda entry: again.append(str(entry)))
    assert any("CACHED" in line for line in again), "nothing is done twice"
    assert any("already cached" in line for line in again), "and nothing is sent twice"
    with pytest.raises(e2b.SandboxException, match="404"):
        Sandbox.create(f"{name}:nothing")


def test_a_failure_says_which_step_and_why(server: Running) -> None:
    template = Template().from_base_image().run_cmd("true").run_cmd("echo to see; echo wrong >&2; exit 3")
    logs: list[str] = []
    with pytest.raises(e2b.BuildException, match="failed to run command 'echo to see"):
        Template.build(template, _name("fails"), on_build_logs=lambda entry: logs.append(str(entry)))
    assert any("to see" in line for line in logs)
    assert any("wrong" in line for line in logs)
    with pytest.raises(
        e2b.BuildException, match="failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
    ):
        Template.build(Template().from_base_image().run_cmd("whoami", user="root123"), _name("nobody"))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Template.build(Template().from_image("nowhere.example.com/image:1"), _name("image")), "no image registry is asked"),
        (lambda: Template.build(Template().from_template("no-such-template"), _name("template")), "404"),
        (lambda: Template.build(Template().from_base_image(), "No Name!"), "400"),
        (lambda: Template.build(Template().from_base_image(), "base"), "403"),
        (lambda: Template.build(Template().from_base_image(), _name("tag"), tags=["not a tag"]), "400"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_reason(server: Running, build: Any, words: str) -> None:
    with pytest.raises(e2b.BuildException, match=words):
        build()


def test_tags_lead_to_builds_and_are_taken_away(server: Running, js: Js) -> None:
    name = _name("tags")
    first = Template.build(Template().from_base_image().run_cmd("echo 1 > /home/user/n"), f"{name}:v1")
    Template.build(Template().from_base_image().run_cmd("echo 2 > /home/user/n"), f"{name}:v2")
    assert Template.assign_tags(f"{name}:v1", ["production", "old"]).build_id == first.build_id
    tags = {one.tag: one.build_id for one in Template.get_tags(name)}
    assert tags.keys() == {"v1", "v2", "production", "old"}
    assert tags["production"] == tags["v1"] == first.build_id != tags["v2"]
    with Sandbox.create(f"{name}:production") as sandbox:
        assert _said(server, sandbox.sandbox_id, "cat /home/user/n") == "1\n"
    Template.remove_tags(name, ["old"])
    assert {one.tag for one in Template.get_tags(name)} == {"v1", "v2", "production"}
    with pytest.raises(e2b.TemplateException, match="404"):
        Template.remove_tags(name, ["old"])
    with pytest.raises(e2b.TemplateException, match="404"):
        Template.assign_tags(f"{name}:nothing", ["x"])
    with pytest.raises(e2b.TemplateException, match="404"):
        Template.get_tags(_name("none"))
    assert not Template.exists(_name("none"))
    assert js("return [await Template.exists(given.name), (await Template.getTags(given.name)).length]", name=name) == [True, 3]


def test_a_template_stands_on_another_one_and_javascript_builds_in_the_background(server: Running, js: Js) -> None:
    below, name = _name("below"), _name("above")
    Template.build(Template().from_base_image().run_cmd("echo below > /home/user/below").set_workdir("/home/user/here"), below)
    said = js("""
        const template = Template().fromTemplate(given.below).runCmd('cat /home/user/below > above; pwd >> above')
        const made = await Template.buildInBackground(template, given.name, { cpuCount: 1, memoryMB: 512 })
        for (;;) {
            const status = await Template.getBuildStatus(made)
            if (status.status === 'ready' || status.status === 'error') return [status.status, status.reason?.message ?? null]
            await sleep(200)
        }
    """, below=below, name=name)  # fmt: skip
    assert said == ["ready", None]
    with Sandbox.create(name) as sandbox:
        assert _said(server, sandbox.sandbox_id, "cat /home/user/here/above") == "below\n/home/user/here\n"


def test_javascript_brings_files_and_learns_of_a_failure(server: Running, js: Js, tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context/a.txt").write_text("from javascript")
    name = _name("js")
    said = js("""
        const from = Template({ fileContextPath: given.place }).fromBaseImage()
        await Template.build(from.copy('a.txt', '/home/user/'), given.name)
        const failed = await thrown(() => Template.build(Template().fromBaseImage().runCmd('exit 4'), given.other))
        return [await Template.exists(given.name), failed.name, failed.message.includes("failed to run command 'exit 4'")]
    """, place=str(tmp_path / "context"), name=name, other=_name("jsfails"))  # fmt: skip
    assert said == [True, "BuildError", True]
    with Sandbox.create(name) as sandbox:
        assert _said(server, sandbox.sandbox_id, "cat /home/user/a.txt") == "from javascript"


def test_templates_are_listed_seen_and_deleted(server: Running) -> None:
    import httpx

    name = _name("seen")
    made = Template.build(
        Template().from_base_image().set_start_cmd("sleep 1000", wait_for_timeout(100)), name, cpu_count=1, memory_mb=1024
    )
    with httpx.Client(base_url=server.served.url, headers={"X-API-KEY": server.key}) as client:
        [one] = [one for one in client.get("/templates").json() if one["templateID"] == name]
        assert (one["buildID"], one["buildStatus"], one["memoryMB"], one["public"]) == (made.build_id, "ready", 1024, False)
        whole = client.get(f"/templates/{name}").json()
        assert [build["status"] for build in whole["builds"]] == ["ready"]
        assert client.get(f"/templates/{name}/builds/{made.build_id}/logs").json()["logs"]
        assert "base" in [one["templateID"] for one in client.get("/default-templates").json()]
        assert client.patch(f"/v2/templates/{name}", json={"public": True}).status_code == 501
        assert client.get("/templates/aliases/base").json() == {"templateID": "base", "public": True}
        link = client.get(f"/templates/{name}/files/{'a' * 64}").json()
        assert httpx.put(link["url"].replace("sign=", "sign=0"), content=b"x").status_code == 401
        assert httpx.put(link["url"].replace("a" * 64, "b" * 64), content=b"x").status_code == 401
        assert client.delete(f"/templates/{name}").status_code == 204
        assert client.delete(f"/templates/{name}").status_code == 404
        assert client.get(f"/templates/{name}").status_code == 404


# -- snapshots ----------------------------------------------------------------------------------------------------------------


def test_many_sandboxes_begin_from_one_snapshot_with_its_memory(server: Running) -> None:
    source = Sandbox.create()
    _said(server, source.sandbox_id, "echo kept > /home/user/file; (exec -a remembered sleep 1000 >/dev/null 2>&1 &) ; true")
    snapshot = source.create_snapshot()
    assert source.is_running()
    _said(server, source.sandbox_id, "echo later > /home/user/file")
    assert source.kill()
    made = [Sandbox.create(snapshot.snapshot_id, metadata={"n": str(n)}, envs={"N": str(n)}, timeout=120) for n in range(2)]
    for n, one in enumerate(made):
        assert _said(server, one.sandbox_id, "cat /home/user/file; pgrep -f remembered >/dev/null && echo runs") == "kept\nruns\n"
        assert one.get_info().metadata == {"n": str(n)}
        assert one.kill()
    pages = Sandbox.list_snapshots(sandbox_id=source.sandbox_id)
    assert [one.snapshot_id for one in pages.next_items()] == [snapshot.snapshot_id]
    listed = Sandbox.list()
    assert snapshot.snapshot_id not in [one.template_id for one in listed.next_items()]
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id)
    with pytest.raises(e2b.SandboxException, match="404"):
        Sandbox.create(snapshot.snapshot_id)


def test_a_snapshot_of_the_disk_alone_has_a_name_and_versions(server: Running, js: Js) -> None:
    source, name = Sandbox.create(), _name("disk")
    _said(server, source.sandbox_id, "echo 1 > /home/user/n")
    first = source.create_snapshot(name=name, mode="filesystem")
    _said(server, source.sandbox_id, "echo 2 > /home/user/n")
    second = source.create_snapshot(name=name, mode="filesystem")
    assert (first.names, second.names) == ([name], [name])
    assert first.snapshot_id != second.snapshot_id
    for reference, said in ((first.snapshot_id, "1\n"), (second.snapshot_id, "2\n"), (name, "2\n")):
        with Sandbox.create(reference) as made:
            assert _said(server, made.sandbox_id, "cat /home/user/n") == said
    listed = js(
        "return (await Sandbox.listSnapshots({ sandboxId: given.id }).nextItems()).map(one => one.snapshotId)", id=source.sandbox_id
    )
    assert listed == [second.snapshot_id, first.snapshot_id]
    source.kill()
    time.sleep(0.1)
    assert Sandbox.delete_snapshot(first.snapshot_id)
    assert Sandbox.delete_snapshot(second.snapshot_id)
    with pytest.raises(e2b.SandboxNotFoundException):
        source.create_snapshot()
