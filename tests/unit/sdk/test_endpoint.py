"""Where the server is: the order in which it is looked for, and where a key may go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest

from space.config.instance import Instance
from space.model.errors import ConnectionFailed, InvalidArgument, SpaceError, Unauthenticated
from space.model.ids import InstanceName
from space.sdk import endpoint
from space.sdk.endpoint import Endpoint, resolve

URL = "http://127.0.0.1:7070"


class Roots(TypedDict):
    run_root: Path
    data_root: Path


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A machine on which the instances `default` and `other` run."""
    for number, name in enumerate(("default", "other")):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "endpoint.json").write_text(f'{{"url": "http://127.0.0.1:707{number}"}}')
        (tmp_path / "data/instances" / name / "control").mkdir(parents=True)
        (tmp_path / "data/instances" / name / "control/admin-key").write_text(f"key-{name}\n")
    return {"run_root": tmp_path / "run", "data_root": tmp_path / "data"}


def test_arguments_win_over_the_environment_and_that_over_the_instance(roots: Roots) -> None:
    env = {"SPACE_API_URL": "https://space.example.com", "SPACE_API_KEY": "env-key"}
    assert resolve("http://192.0.2.1:1/", "mine", environ=env, **roots) == Endpoint("http://192.0.2.1:1", "mine")
    assert resolve(environ=env, **roots) == Endpoint("https://space.example.com", "env-key")
    assert resolve(environ={}, **roots) == Endpoint(URL, "key-default")


def test_a_named_instance_wins_over_the_environment(roots: Roots) -> None:
    env = {"SPACE_API_URL": "https://space.example.com", "SPACE_API_KEY": "env-key"}
    assert resolve(instance="other", environ=env, **roots) == Endpoint("http://127.0.0.1:7071", "key-other")
    assert resolve(environ={"SPACE_INSTANCE": "other"}, **roots) == Endpoint("http://127.0.0.1:7071", "key-other")


def test_an_instances_own_key_goes_to_its_own_address_only(roots: Roots) -> None:
    with pytest.raises(Unauthenticated, match="SPACE_API_KEY"):
        resolve("https://space.example.com", environ={}, **roots)
    assert resolve(URL + "/", environ={}, **roots).key == "key-default"


def test_a_key_file_is_read(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file\n")
    assert resolve("https://space.example.com", key_file=tmp_path / "key", environ={"SPACE_API_KEY": "x"}, **roots).key == "from-file"
    with pytest.raises(InvalidArgument, match="cannot read the key file"):
        resolve("https://space.example.com", key_file=tmp_path / "none", environ={}, **roots)


def test_nothing_known_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed, match=r"'default' is not running here.*space serve.*SPACE_API_URL"):
        resolve(environ={}, run_root=tmp_path, data_root=tmp_path)


@pytest.mark.parametrize("url", ["127.0.0.1:7070", "ftp://a", "http://", "http://u:p@a", "http://a?b", "unix:/x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="not a server address"):
        resolve(url, "k", environ={})


@pytest.mark.parametrize("key", ["a b", "a\nb", "ä"])
def test_what_is_no_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve(URL, key, environ={})
    assert key not in str(caught.value)


def test_a_bad_instance_name_cannot_become_a_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not an instance name"):
        resolve(instance="../../etc", environ={}, run_root=tmp_path, data_root=tmp_path)


def test_a_broken_endpoint_file_is_told(roots: Roots) -> None:
    (roots["run_root"] / "default/endpoint.json").write_text("{")
    with pytest.raises(SpaceError, match="does not hold an address"):
        resolve(environ={}, **roots)


def test_the_key_stays_out_of_repr() -> None:
    assert "secret" not in repr(Endpoint(URL, "secret"))


@pytest.mark.parametrize(
    ("url", "loopback"),
    [(URL, True), ("http://[::1]:1", True), ("http://localhost", True), ("http://127.9.9.9", True), ("https://space.example.com", False)],
)
def test_loopback_is_known(url: str, loopback: bool) -> None:
    assert Endpoint(url, "k").is_loopback is loopback


def test_the_paths_are_those_of_the_configuration() -> None:
    instance = Instance(InstanceName("default"), 0)
    assert instance.endpoint == endpoint.RUN_ROOT / "default" / "endpoint.json"
    assert instance.admin_key == endpoint.DATA_ROOT / "instances/default/control/admin-key"


def test_importing_space_imports_no_http_client_and_the_sdk_no_server() -> None:
    code = "import sys, space; assert not {'httpx', 'space.sdk'} & set(sys.modules); from space import Sandbox; "
    code += "print(sorted(m for m in sys.modules if m.startswith('space.') and m.split('.')[1] not in ('sdk', 'model')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_empty_key_or_address_never_falls_back_on_another(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("\n")
    with pytest.raises(InvalidArgument, match="is empty"):
        resolve(api_url="http://127.0.0.1:1", key_file=tmp_path / "none", environ={"SPACE_API_KEY": "space_a_b"})
    known = {"SPACE_API_KEY": "space_a_b", "SPACE_API_URL": "http://127.0.0.1:1"}
    with pytest.raises(InvalidArgument, match="empty"):
        resolve(api_key="", environ=known)
    with pytest.raises(InvalidArgument, match="empty"):
        resolve(api_url=" ", environ=known)
