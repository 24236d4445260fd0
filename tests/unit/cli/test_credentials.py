"""`space secret` and `space grant`: where values come from, what is said of wrong ones, and that none is seen again."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from space.cli import secretsource
from space.cli.context import Misuse
from space.cli.main import main
from space.model.secret import Secret
from space.sdk.testing import MockServer

CANARY = "canary-0b7c93e1fd"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    server = MockServer()
    with server.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", server.key)
        yield server


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Puts something into standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


def test_a_value_comes_from_stdin_a_file_a_variable_or_a_command(
    server: MockServer, typed: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(b"from stdin\n")
    (tmp_path / "token").write_text("from a file\r\n")
    monkeypatch.setenv("TOKEN", "from a variable")
    assert main(["secret", "put", "a"]) == 0
    assert main(["secret", "put", "b", "--file", str(tmp_path / "token")]) == 0
    assert main(["secret", "put", "c", "--from-env", "TOKEN"]) == 0
    assert main(["secret", "put", "d", "--command", "printf '%s' 'from a command'"]) == 0
    assert server.credentials.values == {"a": "from stdin", "b": "from a file", "c": "from a variable", "d": "from a command"}


def test_a_kind_has_its_main_part_or_all_of_them_as_an_object(server: MockServer, typed: Callable[[bytes], None]) -> None:
    typed(b"key\n")
    assert main(["secret", "put", "s3", "--kind", "aws", "--public", "access_key_id=AKID"]) == 0
    typed(b'{"refresh_token": "r", "client_secret": "c"}')
    assert main(["secret", "put", "mail", "--kind", "oauth_refresh", "--parts", "--public", "endpoint=e", "--public", "client_id=i"]) == 0
    assert server.credentials.values == {"s3": {"secret_access_key": "key"}, "mail": {"refresh_token": "r", "client_secret": "c"}}
    typed(b"next\n")
    assert main(["secret", "rotate", "s3"]) == 0
    assert server.client().secret("s3").public == {"access_key_id": "AKID"}, "what is said of it stays"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["secret", "put", "a", "--from-env", "NOT_THERE"], "there is no variable NOT_THERE"),
        (["secret", "put", "a", "--file", "/not/there"], "cannot read"),
        (["secret", "put", "a", "--file", "x", "--from-env", "Y"], "three places"),
        (["secret", "put", "a", "--command", "false"], "ended with status 1"),
        (["secret", "put", "a", "--command", "/not/there"], "cannot run"),
        (["secret", "put", "a", "--command", "'"], "--command"),
        (["secret", "put", "a", "--kind", "magic"], "--kind"),
        (["secret", "put", "a", "--public", "value=x"], "--public takes"),
        (["secret", "put", "a", "told-on-argv"], "never an argument"),
        (["secret", "rotate", "a", "told-on-argv"], "never an argument"),
        (["secret", "put", "a", "--value=told-on-argv"], "No such option"),
        (["secret", "import"], "a file, or --command"),
        (["grant", "create", "g"], "a file, or --secret"),
        (["grant", "create", "g", "--secret", "s"], "needs --host"),
        (["grant", "create", "g", "--secret", "s", "--host", "h.example.com", "--rate", "fast"], "COUNT/SECONDS"),
    ],
)
def test_wrong_usage_is_a_sentence_and_asks_nobody(
    words: list[str], said: str, server: MockServer, typed: Callable[[bytes], None], capfd: pytest.CaptureFixture[str]
) -> None:
    typed(b"")
    assert main(words) == 2
    told = capfd.readouterr().err
    assert said in told
    assert "told-on-argv" not in told
    assert server.requests == []


def test_a_grant_is_made_of_options_or_of_a_file(server: MockServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server.client().put_secret("s", "x")
    options = ["--secret", "s", "--host", "api.example.com", "--method", "GET", "--path", "/a/**", "--all", "--rate", "5/60", "--uses", "3"]
    assert main(["grant", "create", "a", *options, "--env", "TOKEN"]) == 0
    (tmp_path / "grant.toml").write_text('secret = "s"\nforks = true\n[where]\nhost = "api.example.com"\n[slot]\nkind = "basic"\n')
    assert main(["grant", "create", "b", str(tmp_path / "grant.toml")]) == 0
    a, b = server.client().grants()
    assert a.grant == {
        "name": "a", "secret": "s", "where": {"host": "api.example.com", "port": 443, "methods": ["GET"], "paths": ["/a/**"]},
        "slot": {"kind": "placeholder", "env": "TOKEN", "in": "header", "name": "authorization"},
        "who": {"all": True}, "rate": {"count": 5, "seconds": 60}, "uses": 3,
    }  # fmt: skip
    assert b.grant["forks"] is True
    over = ["--secret", "s", "--host", "api.example.com", "--until", "2020-01-01T00:00:00Z"]
    assert main(["grant", "create", "over", *over]) == 0
    capfd.readouterr()
    assert main(["grant", "list"]) == 0
    assert [line.split()[4] for line in capfd.readouterr().out.splitlines()[1:]] == ["ok", "ok", "expired"]
    (tmp_path / "wrong.toml").write_text("secret = \n")
    assert main(["grant", "create", "c", str(tmp_path / "wrong.toml")]) == 125
    assert "line 1" in capfd.readouterr().err
    assert main(["grant", "create", "a", str(tmp_path / "grant.toml")]) == 125
    assert "already" in capfd.readouterr().err


def test_an_environment_file_is_imported_by_names(server: MockServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = ["# comment", "", "export API_KEY=plain # why", 'QUOTED="two\\nlines"', "SINGLE='as # it is'", "EMPTYISH= x "]
    (tmp_path / ".env").write_text("\n".join(lines))
    assert main(["secret", "import", str(tmp_path / ".env"), "--prefix", "app."]) == 0
    assert capfd.readouterr().out.split() == ["app.api-key", "app.quoted", "app.single", "app.emptyish"]
    assert list(server.credentials.values.values()) == ["plain", "two\nlines", "as # it is", "x"]
    assert main(["secret", "import", "--command", 'printf \'{"OTHER": "o", "MORE": "m"}\'', "--only", "OTHER"]) == 0
    assert server.credentials.values["other"] == "o"
    assert "more" not in server.credentials.values


@pytest.mark.parametrize(
    "text", [f"{CANARY}", f'A="{CANARY}', f"A='{CANARY}", f"A=1\nA={CANARY}", '{"A": ' + CANARY, f'{{"A": ["{CANARY}"]}}']
)
def test_what_cannot_be_imported_is_told_without_what_is_in_it(text: str) -> None:
    with pytest.raises(Misuse) as refused:
        secretsource.several(text.encode())
    assert CANARY not in str(refused.value)


def test_a_value_has_no_words() -> None:
    found = secretsource.several(f"A={CANARY}".encode())
    assert CANARY not in repr(found)
    assert repr(Secret(b"x")) == ""


def test_no_value_is_in_any_output_or_file_over_a_whole_stack(
    tmp_path: Path, typed: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """CLI, SDK, control and a simulated node: every command about credentials, right and wrong."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "space.testing.simserver"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    where: dict[str, Any] = json.loads(process.stdout.readline())
    monkeypatch.setenv("SPACE_API_URL", where["url"])
    monkeypatch.setenv("SPACE_API_KEY", where["key"])
    monkeypatch.setenv("VALUE", CANARY)
    capfd.readouterr()
    done: list[int] = []

    def space(*words: str, stdin: str = "") -> str:
        typed(stdin.encode())
        assert CANARY not in " ".join(words)
        done.append(main([*words]))
        out, err = capfd.readouterr()
        assert CANARY not in out + err, words
        return out

    sandbox = space("create").strip()
    for json_too in ((), ("--json",)):
        space(*json_too, "secret", "put", "a", "--replace", stdin=CANARY)
        space(*json_too, "secret", "put", "a", stdin=CANARY)
        space(*json_too, "secret", "put", "b", "--replace", "--from-env", "VALUE", "--kind", "aws", "--public", "access_key_id=AKID")
        space(*json_too, "secret", "put", "Wrong Name", "--from-env", "VALUE")
        space(*json_too, "secret", "put", "c", "--parts", stdin=f'{{"value": "{CANARY}", "other": "{CANARY}"}}')
        space(*json_too, "secret", "put", "c", "--parts", stdin=f'{{"value": "{CANARY}"')
        space(*json_too, "secret", "put", "c", "--expires", "soon", stdin=CANARY)
        space(*json_too, "secret", "put", "c", stdin=CANARY * 5000)
        space(*json_too, "secret", "rotate", "a", "--command", "printenv VALUE")
        space(*json_too, "secret", "import", "-", "--replace", stdin=f"IMPORTED={CANARY}\n")
        space(*json_too, "secret", "import", "-", stdin=f"not a variable {CANARY}\n")
        space(*json_too, "secret", "list")
        space(*json_too, "secret", "show", "a")
        space(*json_too, "grant", "create", "g", "--secret", "a", "--host", "api.example.com", "--replace")
        space(*json_too, "grant", "attach", sandbox, "g")
        space(*json_too, "grant", "show", "g")
        space(*json_too, "grant", "list")
        space(*json_too, "secret", "log")
        space(*json_too, "show", sandbox)
        space(*json_too, "events")
        space(*json_too, "audit")
        space(*json_too, "grant", "detach", sandbox, "g")
        space(*json_too, "grant", "revoke", "g")
        space(*json_too, "grant", "delete", "g")
        space(*json_too, "secret", "revoke", "b")
    space("secret", "delete", "b")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "state.db" for path in files)
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    _, said = process.communicate(timeout=30)
    assert CANARY.encode() not in said
    assert done.count(0) > 30
