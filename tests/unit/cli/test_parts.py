"""The parts of the command line that decide, each alone: keys, modes of a screen, the client's file, figures, ports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.cli.arguments import arranged
from space.cli.clientfile import chosen, load, store
from space.cli.context import size
from space.cli.files import mode_bits, permissions
from space.cli.forward import ports
from space.cli.inspect import curves, idle_policy, sparkline
from space.cli.main import main
from space.cli.progress import Progress
from space.cli.terminal import terminal_environment
from space.cli.tty import DetachKeys, Screen, detach_keys
from space.model.errors import InvalidArgument
from space.model.files import FileInfo
from space.sdk import Sample

# -- keys and screens --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=6)), st.binary(min_size=1, max_size=3))
def test_keys_are_found_however_what_is_typed_was_split_and_nothing_else_is_lost(pieces: list[bytes], keys: bytes) -> None:
    finder, passed, detached = DetachKeys(keys), b"", False
    for piece in pieces:
        now, detached = finder.receive(piece)
        passed += now
        if detached:
            break
    typed = b"".join(pieces)
    before, found, _ = typed.partition(keys)
    assert detached == bool(found)
    if found:
        assert passed == before
    else:
        assert typed.startswith(passed)
        held = typed[len(passed) :]
        assert len(held) < len(keys)
        assert keys.startswith(held)


def test_detach_keys_are_written_as_docker_writes_them() -> None:
    assert detach_keys("ctrl-p,ctrl-q").receive(b"a\x10\x11b") == (b"a", True)
    assert detach_keys("ctrl-],d").receive(b"\x1dd") == (b"", True)
    assert detach_keys("ctrl-@").receive(b"\0") == (b"", True)
    assert detach_keys("").receive(b"\x10\x11") == (b"\x10\x11", False)
    for wrong in ("ctrl-", "ctrl-pq", "alt-x", "ctrl-p,", "é", "ctrl-1"):
        with pytest.raises(InvalidArgument, match="no key"):
            detach_keys(wrong)


@given(
    st.lists(st.sampled_from([b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h", b"\x1b[?1;2004h", b"text", b"\x1b[2J", b"\x1b"]))
)
def test_a_screen_is_put_back_however_its_output_was_split(parts: list[bytes]) -> None:
    data = b"".join(parts)
    whole, bytewise = Screen(), Screen()
    whole.saw(data)
    for place in range(len(data)):
        bytewise.saw(data[place : place + 1])
    assert whole.undo() == bytewise.undo()
    on = data.rfind(b"\x1b[?1049h") > data.rfind(b"\x1b[?1049l")
    assert (b"\x1b[?1049l" in whole.undo()) == on
    assert (b"\x1b[?25h" in whole.undo()) == (data.rfind(b"\x1b[?25l") > data.rfind(b"\x1b[?25h"))


def test_a_program_that_cleans_up_is_left_alone() -> None:
    screen = Screen()
    screen.saw(b"\x1b[?1049h\x1b[?1hdrawn\x1b[?1l\x1b[?1049l")
    assert screen.undo() == b""


def test_a_terminal_that_guests_do_not_describe_is_told_as_one_that_it_imitates() -> None:
    assert terminal_environment({"TERM": "screen-256color"}) == {"TERM": "screen-256color"}
    assert terminal_environment({"TERM": "xterm-kitty", "COLORTERM": "truecolor"}) == {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    assert terminal_environment({}) == {"TERM": "xterm-256color"}


# -- words -------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["a", "-x", "--json", "--env", "-e", "--url", "--", "-qe", "b=1"])))
def test_a_program_is_never_changed(words: list[str]) -> None:
    made = arranged(["exec", "sb", "--", *words], lambda _: {"--env", "-e"})
    assert made == ["exec", "sb", "--", *words]
    assert arranged(["exec", "sb", "id", *words], lambda _: {"--env", "-e"}) == ["exec", "sb", "--", "id", *words]


def test_ports() -> None:
    assert [ports(text) for text in ("8080:80", "80", "-:80", ":80")] == [(8080, 80), (80, 80), (0, 80), (0, 80)]


def test_permissions_are_written_and_read_as_by_ls_and_chmod() -> None:
    def info(mode: int, kind: str = "file") -> FileInfo:
        return FileInfo("f", kind, 0, 0, mode, 0, 0, "root", "root", 0.0, 1, 1)  # type: ignore[arg-type]

    assert permissions(info(0o644)) == "-rw-r--r--"
    assert permissions(info(0o1777, "directory")) == "drwxrwxrwt"
    assert permissions(info(0o4711)) == "-rws--x--x"
    assert permissions(info(0o6600)) == "-rwS--S---"
    assert [mode_bits(text) for text in ("755", "0600", "0o7777")] == [0o755, 0o600, 0o7777]
    for wrong in ("", "8", "u+x", "10000", "-1"):
        with pytest.raises(InvalidArgument):
            mode_bits(wrong)


def test_idle_policies() -> None:
    assert [idle_policy(f"90{more}").action for more in ("", ":delete", ":suspend", ":stop")] == ["pause", "delete", "suspend", "stop"]
    assert idle_policy("60:pause").seconds == 60
    for wrong in ("", "soon", "-1", "60:sleep", "1.5"):
        with pytest.raises(InvalidArgument):
            idle_policy(wrong)


# -- figures -----------------------------------------------------------------------------------------------------------------


def test_a_row_of_bars_goes_from_the_least_to_the_greatest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([0] * 999 + [1] + [0] * 1000, 4) == "▁█▁▁"  # a peak is not lost
    assert len(sparkline(list(range(1000)))) == 60


def test_processor_time_is_told_as_a_share_between_two_samples() -> None:
    def sample(at: float, user: int) -> Sample:
        return Sample(at, 100, 40, user, 500, 1000, 10, 3, 0, 0)

    named = {name: values for name, values, _ in curves([sample(0, 0), sample(2, 1000), sample(2, 1000), sample(3, 2000)])}
    assert named["cpu"] == [50.0, 100.0]
    assert named["memory"] == [60.0] * 4
    assert "cpu" not in {name for name, _, _ in curves([sample(0, 0)])}


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 1024, 10 << 20, 3 << 30, 5 << 40)] == ["0 B", "999 B", "1.0 KiB", "10.0 MiB", "3.0 GiB", "5.0 TiB"]


def test_progress_is_a_line_that_is_gone_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with Progress(total=4 << 20, visible=True, clock=lambda: now) as progress:
        for step in range(1, 41):
            now += 0.01
            progress(step << 16)
    shown = capsys.readouterr().err.split("\r\x1b[K")
    assert "625.0 KiB of 4.0 MiB, 6.1 MiB/s" in shown[1] or "of 4.0 MiB" in shown[1]
    assert len(shown) < 7  # ten a second, and the last that clears
    assert shown[-1] == ""
    with Progress(visible=False) as progress:
        progress(5)
    assert capsys.readouterr().err == ""


# -- the client's own file ---------------------------------------------------------------------------------------------------


def test_options_come_before_environment_before_file_before_this_machine(own_config: Path) -> None:
    store(own_config, {"api_url": "https://file.example.com", "key_file": "/file-key"})
    base = {"XDG_CONFIG_HOME": str(own_config.parents[1])}

    def found(url: str | None = None, key: str | None = None, instance: str | None = None, **env: str) -> tuple[str | None, str | None]:
        made = chosen(url, key, instance, base | env)
        return made.url, made.key_file

    assert found() == ("https://file.example.com", "/file-key")
    assert found(SPACE_API_KEY="k") == ("https://file.example.com", None)
    assert found(key="/mine") == ("https://file.example.com", "/mine")
    assert found(SPACE_API_URL="https://env.example.com") == ("https://env.example.com", None)  # the file's key is for the file's address
    assert found("https://flag.example.com", SPACE_API_URL="https://env.example.com") == ("https://flag.example.com", None)
    assert found("https://file.example.com/") == ("https://file.example.com/", "/file-key")
    assert found(instance="lab") == (None, None)
    assert found(SPACE_INSTANCE="lab") == (None, None)


def test_the_file_is_used_and_shown(
    own_config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPACE_API_URL", "SPACE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    key = tmp_path / "key"
    key.write_text("secret-1\n")
    key.chmod(0o644)
    assert main(["config", "set", "key_file", str(key)]) == 0
    assert "others can read" in capsys.readouterr().err
    assert main(["config", "set", "api_url", "https://space.example.com/"]) == 0
    assert (own_config.stat().st_mode & 0o777, own_config.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert main(["config", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"] == {
        "api_url": {"value": "https://space.example.com", "source": str(own_config)},
        "key_file": {"value": str(key), "source": str(own_config)},
    }
    assert shown["problem"] is None
    assert main(["config", "show"]) == 0
    assert "secret-1" not in "".join(capsys.readouterr())
    assert main(["config", "unset", "api_url"]) == 0
    assert load(own_config) == {"key_file": str(key)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("api_url = 1", "must be text"),
        ("api_key = 'x'", "no setting 'api_key'"),
        ("= =", "no TOML"),
        ("\0", "no TOML"),
        ('key_file = ""', "must be text"),
    ],
)
def test_a_file_that_cannot_be_right_is_told_in_a_sentence(
    own_config: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    own_config.parent.mkdir(parents=True)
    own_config.write_text(text)
    assert main(["config", "show"]) == 125
    err = capsys.readouterr().err
    assert told in err
    assert str(own_config) in err


@pytest.mark.parametrize(("name", "value"), [("api_url", "space.example.com"), ("key_file", "/nonexistent"), ("port", "1")])
def test_what_cannot_be_right_is_not_set(own_config: Path, name: str, value: str) -> None:
    assert main(["config", "set", name, value]) == (2 if name == "port" else 125)
    assert not own_config.exists()


@given(st.dictionaries(st.sampled_from(["api_url", "key_file"]), st.text(st.characters(exclude_categories=["C"]), min_size=1)))
def test_whatever_is_stored_is_read_again(values: dict[str, str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a/config.toml"
        store(path, values)
        assert load(path) == values


def test_the_clients_file_is_a_regular_one_and_a_link_to_it_stays(own_config: Path, tmp_path: Path) -> None:
    own_config.parent.mkdir(parents=True)
    os.mkfifo(own_config)
    assert main(["config", "show"]) == 125
    with pytest.raises(OSError, match="is no regular file"):
        store(own_config, {"api_url": "http://a"})
    assert own_config.is_fifo()
    own_config.unlink()
    own_config.symlink_to(tmp_path / "elsewhere.toml")
    store(own_config, {"api_url": "http://a"})
    assert own_config.is_symlink()
    assert load(tmp_path / "elsewhere.toml") == {"api_url": "http://a"}


def test_a_key_is_not_waited_for_in_a_fifo_when_it_is_set(own_config: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    assert main(["config", "set", "key_file", str(tmp_path / "key")]) == 125
    assert not own_config.exists()
