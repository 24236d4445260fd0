"""Policies of a server on the command line: stored, applied, explained; and the word that a request waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from space import Sandbox
from space.cli.main import main
from space.sdk.testing import MockServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MockServer]:
    server = MockServer()
    (tmp_path / "policy.toml").write_text('version = 1\n[[rule]]\nname = "one"\nhost = "a.example.com"\n')
    monkeypatch.chdir(tmp_path)
    with server.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", server.key)
        yield server


def test_a_policy_is_stored_followed_explained_and_forgotten(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "set", "agents", "policy.toml"]) == 0
    assert main(["--json", "create", "--policy", "agents"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert (made["policy"]["name"], made["policy"]["state"]) == ("agents", "applied")
    assert main(["--json", "policy", "explain", made["id"], "https://a.example.com/x"]) == 0
    assert json.loads(capfd.readouterr().out)["rule"] == "one"
    assert main(["show", made["id"]]) == 0
    assert "agents, generation 1" in capfd.readouterr().out
    assert main(["policy", "delete", "agents"]) == 125
    assert "followed by 1 sandbox\n" in capfd.readouterr().err
    assert main(["policy", "apply", made["id"], "--none"]) == 0
    assert "nothing may leave" in capfd.readouterr().out
    assert main(["policy", "delete", "agents"]) == 0
    assert main(["--json", "create", "--policy", "./policy.toml"]) == 0
    assert json.loads(capfd.readouterr().out)["policy"]["name"] is None


def test_a_tenants_layer_is_set_whole_and_shown(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.client().set_policy("agents", {"version": 1})
    assert main(["--json", "policy", "set", "--tenant", "acme", "policy.toml", "--default", "agents", "--permit", "open"]) == 0
    layer = json.loads(capfd.readouterr().out)
    assert (layer["default"], layer["permits"], layer["revision"]) == ("agents", ["open"], 1)
    assert main(["policy", "get", "--tenant", "acme"]) == 0
    assert "a.example.com" in capfd.readouterr().out
    assert main(["policy", "set", "--operator", "--none"]) == 0
    assert "does not narrow" in capfd.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "policy set agents",
        "policy set --operator --tenant acme policy.toml",
        "policy set --operator one two",
        "policy set --operator --permit open",
        "policy set --operator",  # a file that was forgotten opens nothing
        "policy set --tenant acme --default agents",
        "policy set --tenant acme acme.toml --none",
        "policy set agents --none",
        "policy explain https://a.example.com/",
        "policy explain policy.toml a.example.com",
        "policy set --tenant acme --permit everything",
        "policy get",
        "policy get agents --operator",
        "policy apply SB",
        "policy apply SB policy.toml --none",
    ],
)
def test_wrong_usage_is_2_and_asks_no_server(server: MockServer, words: str) -> None:
    assert main(words.replace("SB", "sb-" + "a" * 20).split()) == 2
    assert server.requests == []


def test_every_mistake_of_a_policy_is_shown_with_its_place(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    Path("policy.toml").write_text("version = 2\nextra = 1\n")
    assert main(["policy", "set", "agents", "policy.toml"]) == 125
    said = capfd.readouterr().err
    assert "extra: unknown (known: cidr" in said
    assert "version: 2 is not 1" in said


def test_a_request_that_waits_is_shown_without_control_characters_and_answered(
    server: MockServer, capfd: pytest.CaptureFixture[str]
) -> None:
    sandbox = Sandbox.create(client=server.client())
    first = server.egress.ask(sandbox.id, method="POST", path="/x\x1b[2J", rule="rule[0]")
    second = server.egress.ask(sandbox.id)
    assert main(["egress", "asks", sandbox.id]) == 0
    shown = capfd.readouterr().out
    assert f"{first}  " in shown
    assert "POST https://example.com:443/x" in shown
    assert "\x1b" not in shown
    assert main(["egress", "allow", sandbox.id, first]) == 0
    assert main(["egress", "deny", sandbox.id, second]) == 0
    assert server.egress.answered == [(sandbox.id, first, True), (sandbox.id, second, False)]
    assert main(["egress", "deny", sandbox.id, second]) == 125
