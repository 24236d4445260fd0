"""Where a setting's value comes from, and whom a wrong one is blamed on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from space.cli.config import written
from space.cli.main import main
from space.config import settings as config
from space.config.settings import DEFAULT, FLAGS, Settings, WrongFlag, resolve
from space.model.errors import InvalidArgument
from space.serve import main as serve


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "default.toml"
    path.write_text('port = 1\nmax_sandboxes = 1\nlog_format = "json"\nallowed_hosts = ["a.example.com"]\n')
    return path


def test_flags_stand_over_the_environment_and_that_over_the_file(file: Path) -> None:
    environment = {"SPACE_PORT": "2", "SPACE_MAX_SANDBOXES": "2", "SPACE_API_URL": "http://somebody.example.com", "PORT": "9"}
    found = resolve(file, {"port": "3"}, environment)
    assert found.settings == replace(Settings(), port=3, max_sandboxes=2, log_format="json", allowed_hosts=("a.example.com",))
    chosen = {key: source for key, source in found.sources.items() if source != DEFAULT}
    expected = {"port": FLAGS, "max_sandboxes": "SPACE_MAX_SANDBOXES", "log_format": str(file), "allowed_hosts": str(file)}
    assert chosen == expected


def test_a_file_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    assert resolve(tmp_path / "none.toml").settings == Settings()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"prot": "1"}, "unknown setting 'prot'"),
        ({"port": "x"}, "setting port is a whole number, not 'x'"),
        ({"port": "70000"}, "setting port is 0 to 65535"),
        ({"on_stop": "maybe"}, "setting on_stop is keep or delete, not 'maybe'"),
        ({"allow_remote_emulated": "yes"}, "is true or false, not 'yes'"),
        ({"tls_key": "/k"}, "one of them is missing"),
    ],
)
def test_a_wrong_flag_is_the_command_lines_fault(tmp_path: Path, flags: dict[str, str], words: str) -> None:
    with pytest.raises(WrongFlag, match=words) as caught:
        resolve(tmp_path / "none.toml", flags)
    assert caught.value.code == "invalid_argument"


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("port = 70000", {}, "setting port is 0 to 65535"),
        ("prot = 1", {}, "default.toml: unknown setting 'prot'"),
        ("port =", {}, "is not TOML"),
        ("", {"SPACE_PORT": "many"}, "SPACE_PORT is a whole number, not 'many'"),
        ("", {"SPACE_LOG_FORMAT": "xml"}, "setting log_format is text or json"),
    ],
)
def test_a_wrong_file_or_variable_is_not(tmp_path: Path, text: str, environment: dict[str, str], words: str) -> None:
    path = tmp_path / "default.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=words) as caught:
        resolve(path, {"max_ttl_seconds": "60"}, environment)
    assert not isinstance(caught.value, WrongFlag)


def test_half_of_a_pair_in_the_file_and_half_on_the_command_line_is_right(tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_text('tls_certificate = "/c"\n')
    assert resolve(tmp_path / "default.toml", {"tls_key": "/k"}).settings.tls_key == "/k"


@pytest.mark.parametrize(("arguments", "status"), [(["--set", "prot=1"], 2), (["--set", "port=70000"], 2), ([], 1)])
def test_serve_ends_with_the_status_of_wrong_usage_when_a_flag_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int
) -> None:
    (tmp_path / "default.toml").write_text("" if arguments else "port = 70000")
    monkeypatch.setattr(serve, "SETTINGS_ROOT", tmp_path)
    monkeypatch.setattr(serve, "_ensure_storage", lambda: pytest.fail("something was started"))
    assert serve.main(["--dev", *arguments]) == status
    assert "space serve: " in capsys.readouterr().err


def test_config_server_says_where_each_value_came_from(
    monkeypatch: pytest.MonkeyPatch, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("space.config.instance.SETTINGS_ROOT", file.parent)
    monkeypatch.setattr("space.config.instance.load", lambda _: None)
    monkeypatch.setenv("SPACE_MAX_TTL_SECONDS", "60")
    monkeypatch.delenv("SPACE_INSTANCE", raising=False)
    assert main(["config", "server", "--effective", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["instance"], shown["served"]) == ("default", False)
    assert shown["settings"].keys() == set(Settings.__dataclass_fields__)
    assert shown["settings"]["port"] == {"value": 1, "source": str(file)}
    assert shown["settings"]["max_ttl_seconds"] == {"value": 60, "source": "SPACE_MAX_TTL_SECONDS"}
    assert shown["settings"]["host"] == {"value": "127.0.0.1", "source": "default"}
    assert main(["config", "server"]) == 0
    names = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert names == {"SETTING", "port", "max_sandboxes", "log_format", "allowed_hosts", "max_ttl_seconds"}


def test_what_is_shown_can_be_set_again(tmp_path: Path) -> None:
    settings = Settings(
        port=0, allowed_hosts=("a.example.com", "b.example.com"), allow_remote_emulated=True, tls_certificate="/c", tls_key="/k"
    )
    flags = {name: text for name in Settings.__dataclass_fields__ if (text := written(getattr(settings, name))) != "-"}
    assert config.resolve(tmp_path / "none.toml", flags).settings == settings
