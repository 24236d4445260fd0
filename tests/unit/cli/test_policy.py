"""`space policy`: what is printed of policies, where, and with which exit status."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from space.cli.main import main

Space = Callable[..., tuple[int, str, str]]

POLICY = """
version = 1
presets = ["pip"]
[[rule]]
name = "service"
host = "service.example.com"
paths = ["/v1/**"]
"""
PRESET = """
version = 1
[[rule]]
host = "index.example.com"
methods = ["GET", "HEAD"]
[guest.files]
"/etc/pip.conf" = "[global]"
"""
CASES = """
[[case]]
url = "https://index.example.com/simple/x/"
expect = "allow"
rule = "pip.rule[0]"
[[case]]
url = "https://service.example.com/v2"
method = "POST"
expect = "path_not_allowed"
"""


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Space]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets/pip.toml").write_text(PRESET)
    (tmp_path / "policy.toml").write_text(POLICY)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["policy", *arguments, "--presets", "presets"])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def answer(done: tuple[int, str, str]) -> Any:
    return json.loads(done[1])


def test_a_policy_without_mistake_is_said_to_be_one(space: Space) -> None:
    assert space("check", "policy.toml") == (0, "policy.toml: 2 rules, no mistake\n", "")
    assert space("check", "presets/pip.toml")[0] == 0


def test_every_mistake_is_printed_with_its_place_and_hint_and_the_status_is_1(space: Space) -> None:
    Path("bad.json").write_text('{"version": 1, "mode": "off", "rule": [{"host": "com"}]}')
    status, out, _ = space("check", "bad.json", "policy.toml")
    assert status == 1
    assert [line.partition(": ")[2].split(": ")[:2] for line in out.splitlines()[:2]] == [["mistake", "mode"], ["mistake", "rule[0].host"]]
    assert "(name the hosts themselves)" in out
    assert answer(space("check", "--json", "bad.json"))["files"][0]["mistakes"][0]["path"] == "mode"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no.toml", "version = "),
        ("no.json", "{"),
        ("twice.json", '{"version": 1, "version": 1}'),
        ("list.json", "[]"),
        ("deep.json", "[" * 100_000),
        ("latin.toml", "# \udce9"),
    ],
)
def test_what_is_no_data_is_a_mistake_of_the_file(space: Space, name: str, text: str) -> None:
    Path(name).write_bytes(text.encode(errors="surrogateescape"))
    status, out, _ = space("check", name)
    assert status == 1
    assert out.startswith(f"{name}: mistake: file: ")
    assert space("check", "missing.toml")[0] == 1


def test_mistakes_of_a_preset_are_told_with_the_policy_that_names_it(space: Space) -> None:
    Path("presets/pip.toml").write_text('version = 1\nopen = true\n[[rule]]\nhost = "com"\n[guest]\n')
    status, out, _ = space("check", "policy.toml")
    assert status == 1
    assert "pip.toml: rule[0].host" in out
    assert "pip.toml: open" in out
    Path("policy.toml").write_text("version = 1")
    assert space("check", "policy.toml")[0] == 0  # a preset that nobody names hinders nobody


def test_a_preset_that_writes_is_warned_of(space: Space) -> None:
    Path("presets/pip.toml").write_text(PRESET.replace('"HEAD"', '"POST"'))
    assert "does more than read" in space("check", "presets/pip.toml")[1]


def test_an_explanation_names_the_rule_of_each_layer(space: Space) -> None:
    status, out, _ = space("explain", "policy.toml", "https://service.example.com/v2/x", "-X", "PUT")
    assert status == 0
    assert out.splitlines()[-1].startswith("request  policy.toml: denied: no rule for this host and method allows the path")
    found = answer(space("explain", "--json", "policy.toml", "policy.toml", "https://index.example.com/simple/x/"))
    assert (found["outcome"], found["rule"]) == ("allow", "pip.rule[0]")
    assert [step["step"] for step in found["steps"]] == ["name", "flow", "request"]
    assert [len(step["lines"]) for step in found["steps"]] == [3, 3, 3]


def test_a_question_that_cannot_be_asked_is_wrong_usage(space: Space) -> None:
    for words in (["https://example.com/"], ["policy.toml", "example.com"], ["policy.toml"] * 4 + ["https://example.com/"]):
        status, _, err = space("explain", *words)
        assert status == 2
        assert err.startswith("space: ")
    Path("bad.toml").write_text("version = 2")
    assert "space policy check bad.toml" in space("explain", "bad.toml", "https://example.com/")[2]


def test_a_password_in_a_url_is_not_repeated(space: Space) -> None:
    assert "s3cret" not in "".join(space("explain", "policy.toml", "https://user:s3cret@example.com/")[1:])


def test_a_difference_says_what_opens_and_fails_when_asked_to(space: Space) -> None:
    Path("new.toml").write_text(POLICY.replace("/v1/**", "/**"))
    Path("less.toml").write_text(POLICY.replace("/v1/**", "/v1/x/**"))
    assert space("diff", "policy.toml", "new.toml")[0] == 0
    assert space("diff", "policy.toml", "new.toml", "--fail-on-wider")[0] == 1
    assert space("diff", "policy.toml", "less.toml", "--fail-on-wider")[0] == 0
    found = answer(space("diff", "policy.toml", "new.toml", "--json"))
    assert found["added"] == ["https://service.example.com:443 /**"]
    assert found["removed"] == ["https://service.example.com:443 /v1/**"]
    assert found["widens"]


def test_a_table_of_expectations_is_held(space: Space) -> None:
    Path("cases.toml").write_text(CASES)
    assert space("test", "policy.toml", "cases.toml") == (0, "2 of 2 expectations are met\n", "")
    Path("cases.toml").write_text(CASES.replace('"allow"', '"ask"'))
    status, out, _ = space("test", "policy.toml", "cases.toml")
    assert status == 1
    assert "ask by pip.rule[0]" in out
    assert "1 of 2 expectations are met" in out
    assert [case["ok"] for case in answer(space("test", "policy.toml", "cases.toml", "--json"))["cases"]] == [False, True]


@pytest.mark.parametrize("text", ["", "case = []", '[[case]]\nurl = "x"\nexpect = "yes"\nmode = 1', "[[case]]\nmethod = 1", "case = [1]"])
def test_a_table_with_mistakes_or_without_cases_is_no_table(space: Space, text: str) -> None:
    Path("cases.toml").write_text(text)
    status, _, err = space("test", "policy.toml", "cases.toml")
    assert status == 125
    assert "case" in err


def test_what_is_discovered_is_printed_or_written_where_policies_find_it(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("PIP_INDEX_URL", "https://u:s3cret@index.example.org/simple")
    status, out, _ = space("discover", "pip", "--offline")
    assert status == 0
    assert 'host = "index.example.org"' in out
    assert "s3cret" not in out
    assert space("discover", "pip", "--offline", "--write")[0] == 125  # the fixture's says something else
    assert space("discover", "pip", "--offline", "--write", "--force")[1].endswith(": written\n")
    assert space("discover", "pip", "--offline", "--write")[1].endswith(": is already so\n")
    assert space("check", "presets/pip.toml", "policy.toml")[0] == 0
    assert answer(space("explain", "--json", "policy.toml", "https://index.example.org/simple/x/"))["rule"] == "pip/1"
    assert answer(space("discover", "pip", "--offline", "--json"))["presets"]["pip"]["rules"] >= 1


def test_a_manager_that_says_nothing_is_status_1_and_an_unknown_one_is_wrong_usage(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    status, out, _ = space("discover", "go")
    assert status == 1
    assert "go is not installed here" in out
    assert space("discover", "brew")[0] == 2
