"""`space shell` on a real guest, looked at as a person does: within tmux, which draws what a terminal would show."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import space
from space.serve.private import Served

PATIENCE = 90.0
ROOT = Path(__file__).parents[2]
FULL_SCREEN = """
import curses

def main(screen):
    curses.raw()
    curses.use_default_colors()
    curses.init_pair(1, 208, -1)
    last = "none"
    while True:
        rows, cols = screen.getmaxyx()
        screen.erase()
        screen.addstr(0, 0, f"{rows}x{cols}, {curses.COLORS} colours, key {last}.")
        screen.addstr(1, 0, "orange", curses.color_pair(1))
        screen.insstr(rows - 1, cols - 3, "END")
        screen.refresh()
        key = screen.getch()
        if key == ord("q"):
            return
        if key != curses.KEY_RESIZE:
            last = str(key)

curses.wrapper(main)
"""


class Tmux:
    """A tmux server of one window. Its shell tells how the command ended, and what it left of the terminal's modes."""

    def __init__(self, home: Path, env: dict[str, str], command: list[str], *, rows: int = 30, cols: int = 100) -> None:
        self._home = home
        self._socket = f"space-{os.getpid()}-{home.name}"
        script = f"stty -g > before; echo first line; {shlex.join(command)}; echo status=$?; stty -g > after; echo over; exec sleep 600"
        (home / "window.sh").write_text(script)
        options = ["set-option", "-g", "default-terminal", "tmux-256color", ";"]
        where = ["-x", str(cols), "-y", str(rows), "-c", str(home)]
        self._tmux(*options, "new-session", "-d", *where, "sh window.sh", env={**env, "HOME": str(home)})

    def _tmux(self, *words: str, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        """End it and what runs in it."""
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], capture_output=True, timeout=60, check=False)

    def keys(self, *names: str) -> None:
        """Press keys, by tmux's names."""
        self._tmux("send-keys", *names)

    def resize(self, rows: int, cols: int) -> None:
        """Another size of the window."""
        self._tmux("resize-window", "-x", str(cols), "-y", str(rows))

    def pane(self, *options: str) -> str:
        """What can be seen."""
        return self._tmux("capture-pane", "-p", *options)

    def until(self, wanted: str | Callable[[str], bool]) -> str:
        """What can be seen, once it holds this. Spaces at the ends of lines are not seen."""
        deadline = time.monotonic() + PATIENCE
        while True:
            seen = self.pane()
            if wanted in seen if isinstance(wanted, str) else wanted(seen):
                return seen
            assert time.monotonic() < deadline, f"{wanted!r} is not to be seen:\n{seen}"
            time.sleep(0.05)

    def ended(self, status: int) -> str:
        """What can be seen at the end. The terminal is as it was."""
        seen = self.until("over\n")
        assert f"status={status}\n" in seen
        assert (self._home / "after").read_text() == (self._home / "before").read_text()
        return seen


Open = Callable[..., Tmux]


@pytest.fixture
def window(served: Served, shared: space.Sandbox, tmp_path: Path) -> Iterator[Open]:
    """Opens `space shell` of the shared sandbox in tmux."""
    if shutil.which("tmux") is None:
        pytest.fail("there is no tmux on this machine: run `setup/bootstrap --tests`, or apt-get install tmux")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8"}
    env |= {"SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}
    made: list[Tmux] = []

    def open_window(*program: str, rows: int = 30, cols: int = 100) -> Tmux:
        command = [sys.executable, "-m", "space.cli.main", "shell", shared.id, *(["--", *program] if program else [])]
        made.append(Tmux(tmp_path, env, command, rows=rows, cols=cols))
        return made[-1]

    yield open_window
    for each in made:
        each.close()


def test_a_full_screen_program_has_colours_keys_and_the_windows_size(window: Open, shared: space.Sandbox) -> None:
    shared.files.write("/tmp/full.py", FULL_SCREEN)
    tmux = window("python3", "/tmp/full.py")
    seen = tmux.until("30x100, 256 colours, key none.")
    assert "first line" not in seen  # the alternate screen
    assert seen.splitlines()[29] == " " * 97 + "END"
    assert "\x1b[38;5;208morange" in tmux.pane("-e")
    for key, number in (("C-c", 3), ("C-z", 26), ("C-d", 4), ("C-\\", 28), ("C-s", 19), ("Up", 259), ("F1", 265), ("é", 0xA9)):
        tmux.keys(key)
        tmux.until(f"key {number}.")
    for rows, cols in ((20, 60), (45, 140)):
        tmux.resize(rows, cols)
        seen = tmux.until(f"{rows}x{cols}, 256 colours")
        assert tmux.until(lambda seen: "END" in seen).splitlines()[rows - 1] == " " * (cols - 3) + "END"
    tmux.keys("q")
    seen = tmux.ended(0)
    assert "first line" in seen  # what was there before is there again
    assert "256 colours" not in seen


def test_top_draws_itself_anew_when_the_window_changes(window: Open) -> None:
    tmux = window("top", "-d", "1")
    tmux.until(lambda seen: "load average" in seen and "PID" in seen and "COMMAND" in seen)
    tmux.resize(12, 60)
    tmux.until(lambda seen: len(seen.splitlines()) == 12 and "PID" in seen)
    tmux.keys("q")
    tmux.ended(0)


def test_a_shell_has_job_control_and_ends_with_its_status(window: Open) -> None:
    tmux = window(rows=25, cols=90)
    tmux.until("~$")
    for typed, wanted in (
        ("stty size; tput colors; tty", "25 90\n256\n/dev/pts/"),
        ("echo $TERM $((6*7))", "tmux-256color 42"),
    ):
        tmux.keys(typed, "Enter")
        tmux.until(wanted)
    tmux.keys("sleep 1000", "Enter")
    time.sleep(0.5)  # it is the program, not the line editor, that is to be interrupted
    tmux.keys("C-c")
    tmux.keys("echo got $?", "Enter")
    tmux.until("got 130")
    tmux.keys("sleep 1001", "Enter")
    time.sleep(0.5)
    tmux.keys("C-z")
    tmux.until("Stopped")
    tmux.keys("kill %1; wait; echo $((1+1)) done", "Enter")
    tmux.until("2 done")
    tmux.resize(33, 77)
    tmux.keys("stty size", "Enter")
    tmux.until("33 77")
    tmux.keys("clear; exit 9", "Enter")
    tmux.ended(9)


def test_a_pager_and_an_editor_work(window: Open, shared: space.Sandbox) -> None:
    if not shared.run("command -v vi && command -v less").ok:
        pytest.fail("the base template has neither vi nor less: it is older than this checkout; run `make setup`")
    shared.files.write("/tmp/long.txt", "".join(f"line {number}\n" for number in range(1, 501)))
    tmux = window(rows=24, cols=80)
    tmux.until("~$")
    tmux.keys("less /tmp/long.txt", "Enter")
    tmux.until("line 23\n")
    tmux.keys("G")
    assert "line 500" in tmux.until("line 500\n").splitlines()[22]
    tmux.keys("/line 77$", "Enter")
    tmux.keys("g")
    tmux.until("line 1\n")
    tmux.keys("q")
    tmux.keys("vi /tmp/edited.txt", "Enter")
    tmux.until("~\n~\n")
    tmux.keys("i", "written in the sandbox", "Escape")
    tmux.until("written in the sandbox")
    tmux.resize(40, 120)
    seen = tmux.until(lambda seen: seen.count("~\n") > 30)
    assert seen.startswith("written in the sandbox\n")
    tmux.keys(":wq", "Enter")
    tmux.until(lambda seen: seen.count(":~$") == 3)  # above them tmux may show lines of the other screen, because it grew meanwhile
    tmux.keys("exit", "Enter")
    tmux.ended(0)
    assert shared.files.read("/tmp/edited.txt") == b"written in the sandbox\n"
