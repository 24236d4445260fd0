"""The product has no switch that weakens a defence: no variable, setting, argument or import decides about one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from tests.mutations.table import MUTATIONS

from space.config.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/space"
# What decides about a guest's traffic, or confines who does.
DEFENDING = ("gateway", "dialer", "broker", "auditd", "audit", "core", "rootd")
WEAKENING = re.compile(
    r"insecure|unsafe|no[_-]?verify|skip[_-]|disable|bypass|trust[_-]all|allow[_-]all|no[_-]?check|without[_-]seccomp|debug|testing|mutat|permissive",
    re.IGNORECASE,
)
# Settings that open something on purpose, each with its reason in its comment, and none of them on the way of a guest's packet.
OPENING = {"allow_remote_emulated", "allow_http_webhooks"}


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def test_what_defends_reads_no_variable_of_its_environment() -> None:
    found = [
        path.relative_to(SOURCE).as_posix()
        for path, tree in modules(*DEFENDING)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "getenvb", "putenv")
    ]
    # The broker's key may come from there; without any key it does not start.
    assert found == ["broker/server.py"], f"environment variables are read where a defence is decided: {found}"


def test_no_argument_of_what_defends_can_weaken_it() -> None:
    options = [
        (path.relative_to(SOURCE), argument.value)
        for path, tree in modules(*DEFENDING)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    assert options
    assert not [option for option in options if WEAKENING.search(option[1])]


def test_no_setting_can_weaken_a_defence() -> None:
    names = {field.name for field in fields(Settings)}
    assert {name for name in names if WEAKENING.search(name) or name.startswith("allow_")} - {"allowed_hosts"} == OPENING
    used = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path, tree in modules(*DEFENDING)
        for node in ast.walk(tree)
        for name in OPENING
        if isinstance(node, ast.Attribute) and node.attr == name
    }
    assert not used


def test_what_defends_imports_nothing_of_the_tests() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path, tree in modules(*DEFENDING)
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if name.split(".")[0] in ("tests", "pytest", "unittest", "hypothesis") or name.startswith("space.testing")
    ]
    assert not found


def test_asserts_are_not_what_a_defence_rests_on() -> None:
    """`python -O` takes them away: no service is started so, and serve builds the environment from nothing."""
    started = [path for path, _ in modules("serve", "rootd", "setup") if '"-O"' in path.read_text() or "PYTHONOPTIMIZE" in path.read_text()]
    assert not started


def test_services_ignore_what_their_environment_says_of_imports() -> None:
    assert '"-I"' in (SOURCE / "serve/service.py").read_text()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_every_mutation_weakens_something_that_is_there(mutation) -> None:  # type: ignore[no-untyped-def]
    path = ROOT / "src" / (mutation.module.replace(".", "/") + ".py")
    source = path.read_text()
    assert source.count(mutation.old) == 1
    ast.parse(source.replace(mutation.old, mutation.new))
    assert mutation.tests
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutation.tests)


def test_every_defence_has_a_quick_one_or_is_in_the_whole_run() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)
    assert sum(one.quick for one in MUTATIONS) >= 12
