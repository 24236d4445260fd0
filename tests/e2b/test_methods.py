"""Every method that E2B's SDK for Python has in public is tried by a test here, or stands below with the reason why none does; and those
that are tried nowhere else.
"""

from __future__ import annotations

import inspect
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.e2b.stage import Running

import e2b
from e2b import Sandbox, Secret, Template

REASONS = {
    "get_mcp_token": "reads a file of a gateway for tools that no template here has",
    "get_mcp_url": "the address of that gateway, made of the sandbox's name without asking anybody",
    "iam_token": "a form for tokens of the cloud that E2B itself runs in",
}
CLASSES = ("Sandbox", "AsyncSandbox", "Template", "AsyncTemplate", "Secret", "AsyncSecret")
PARTS = ("files", "commands", "pty", "git")  # of a sandbox


def _tried() -> str:
    return "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))


def _public(thing: Any) -> set[str]:
    found = {name: inspect.getattr_static(thing, name) for name in dir(thing) if not name.startswith("_")}
    return {name for name, what in found.items() if callable(what) or isinstance(what, property | classmethod | staticmethod)}


def _untried(names: set[str]) -> set[str]:
    text = _tried()
    return {name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)} - REASONS.keys()


def test_every_method_of_pythons_sdks_is_tried_or_has_a_reason(shared: Sandbox) -> None:
    names = set().union(*(_public(getattr(e2b, name)) for name in CLASSES), *(_public(type(getattr(shared, part))) for part in PARTS))
    assert _untried(names) == set()


def test_what_a_sandbox_says_of_its_own_addresses(sandbox: Sandbox, server: Running) -> None:
    assert sandbox.envd_api_url == sandbox.envd_direct_url == server.served.url
    assert sandbox.sandbox_domain
    assert sandbox.beta_pause() is True
    assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo back").stdout == "back\n"


def test_a_secrets_place_is_made_by_the_sdk_alone() -> None:
    assert Secret.fill("a-key") == "${e2b.secrets.a-key}"


def test_a_build_is_followed_from_elsewhere(server: Running) -> None:
    name = f"followed-{uuid.uuid4().hex[:8]}"
    assert Template.alias_exists(name) is False
    template = Template().from_debian_image("bookworm").skip_cache().run_cmd("echo built > /home/user/built")
    made = Template.build_in_background(template, name)
    seen = set()
    while (status := Template.get_build_status(made, logs_offset=0)).status.value not in ("ready", "error"):
        seen.add(status.status.value)
    assert status.status.value == "ready", (seen, status)
    assert Template.alias_exists(name) is True
    with Sandbox.create(name) as made_of_it:
        assert made_of_it.files.read("built") == "built\n"


def test_a_dockerfile_says_the_same() -> None:
    template = Template().from_dockerfile("FROM python:3.11\nENV A=b\nRUN echo hello\nWORKDIR /srv\n")
    assert '"python:3.11"' in Template.to_json(template)
    assert "RUN" in Template.to_dockerfile(Template().from_python_image("3.11").run_cmd("true"))


@pytest.mark.parametrize(
    "template",
    [
        Template().from_ubuntu_image("24.04"),
        Template().from_fedora_image(),
        Template().from_alpine_image(),
        Template().from_arch_image(),
        Template().from_node_image("lts"),
        Template().from_bun_image(),
        Template().from_aws_registry("1.dkr.ecr.example.com/i", "key", "secret", "eu-central-1"),
        Template().from_gcp_registry("gcr.example.com/p/i", {"type": "service_account"}),
    ],
    ids=["ubuntu", "fedora", "alpine", "arch", "node", "bun", "aws", "gcp"],
)
def test_an_image_that_no_template_stands_for_is_refused_with_the_way_out(server: Running, template: Any) -> None:
    with pytest.raises((e2b.BuildException, e2b.SandboxException, e2b.InvalidArgumentException)) as refused:
        Template.build(template, f"refused-{uuid.uuid4().hex[:8]}")
    assert re.search(r"e2b_images|registry|no template stands", str(refused.value)), refused.value


def test_the_rest_of_the_git_helper_works(shared: Sandbox) -> None:
    git, place = shared.git, "/home/user/rest"
    shared.commands.run("git init -q --bare /home/user/rest.git")
    git.init(place, initial_branch="main")
    git.configure_user("A Person", "person@example.com")
    git.remote_add(place, "origin", "/home/user/rest.git")
    shared.files.write(f"{place}/f", "1")
    git.add(place)
    git.commit(place, "first")
    git.push(place, remote="origin", branch="main")
    assert (git.remote_get(place, "origin"), git.remote_get(place, "nobody")) == ("/home/user/rest.git", None)
    git.create_branch(place, "other")
    git.checkout_branch(place, "other")
    assert git.branches(place).current_branch == "other"
    shared.files.write(f"{place}/f", "changed")
    assert (git.status(place).has_changes, git.status(place).is_clean) == (True, False)
    git.restore(place, ["f"])
    assert (shared.files.read(f"{place}/f"), git.status(place).is_clean) == ("1", True)
    shared.files.write(f"{place}/g", "2")
    git.add(place)
    git.commit(place, "second")
    git.reset(place, mode="hard", target="main")
    assert not shared.files.exists(f"{place}/g")
    git.checkout_branch(place, "main")
    git.delete_branch(place, "other", force=True)
    assert git.branches(place).branches == ["main"]
    git.clone("/home/user/rest.git", path="/home/user/rest-clone", branch="main")
    shared.files.write(f"{place}/h", "3")
    git.add(place)
    git.commit(place, "third")
    git.push(place, remote="origin", branch="main")
    git.pull("/home/user/rest-clone", remote="origin", branch="main")
    assert shared.files.read("/home/user/rest-clone/h") == "3"
    git.set_config("space.test", "on", scope="local", path=place)
    assert git.get_config("space.test", scope="local", path=place) == "on"
    git.dangerously_authenticate("person", "a-password", host="git.example.com")
    assert "a-password" in shared.commands.run("cat ~/.git-credentials ~/.config/git/credentials 2>/dev/null; true").stdout
