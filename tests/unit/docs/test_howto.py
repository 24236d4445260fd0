"""What the how-tos show is what happens: their Python runs, prints what they say, and their commands parse."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import typer

from space.cli import main as program
from space.cli.arguments import arranged
from space.sdk.testing import MockServer, Process, Reply

HOWTO = Path(__file__).parents[3] / "docs/howto"
PAGES = sorted(path.name for path in HOWTO.glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


_STRING = re.compile(r'"""(.*?)"""', re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each fenced block."""
    return _BLOCK.findall((HOWTO / page).read_text())


def expected(page: str) -> str:
    return "".join(text for language, text in blocks(page) if language == "text")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MockServer]:
    """A mock server whose `python3` is a real one over the sandbox's files."""
    mock = MockServer()

    @mock.program("python3")
    def python(process: Process) -> Generator[tuple[str, bytes], None, Reply]:
        with tempfile.TemporaryDirectory() as root:
            for name, data in process.files.items():
                path = Path(root + name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            done = subprocess.run(
                [sys.executable, "-I", *process.argv[1:]], cwd=root + process.cwd, env=dict(process.env), input=b"".join(process.incoming),
                capture_output=True, check=False, timeout=60,
            )  # fmt: skip
            for path in Path(root).rglob("*"):
                if path.is_file():
                    process.files[str(path).removeprefix(root)] = path.read_bytes()
        yield "stdout", done.stdout
        yield "stderr", done.stderr
        return Reply(exit_code=done.returncode)

    with mock.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", mock.key)
        monkeypatch.chdir(tmp_path)
        yield mock


def run_page(page: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Everything that a page's Python prints, its blocks one after another in one program."""
    names: dict[str, object] = {"__name__": "howto"}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), names)
    return capsys.readouterr().out


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in (HOWTO / page).read_text()])
def test_the_python_of_a_page_prints_what_the_page_says(page: str, server: MockServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_page(page, capsys) == expected(page)
    assert server.sandboxes == {} or all(sandbox.phase == "gone" for sandbox in server.sandboxes.values())


def test_every_python_block_of_a_page_is_followed_by_what_it_prints() -> None:
    for page in PAGES:
        found = blocks(page)
        for (language, text), (then, _) in zip(found, [*found[1:], ("", "")], strict=True):
            if language == "python" and re.search(r"^\s*print\(", _STRING.sub("", text), re.MULTILINE):
                assert then == "text", f"{page}: {text[:60]!r}"


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_commands(page: str) -> None:
    program._register([])
    root = typer.main.get_command(program.app)
    shown = "".join(text for language, text in blocks(page) if language == "sh")
    for line in shown.splitlines():
        words = arranged(shlex.split(line)[1:], lambda command: program._values_of(root, command))
        context = root.make_context("space", words)
        assert line.startswith("space ")
        found, rest = root, [*context._protected_args, *context.args]
        while hasattr(found, "commands"):
            assert rest[0] in found.commands, f"{page}: {line}"
            found, rest = found.commands[rest[0]], rest[1:]
        found.make_context(line, list(rest), parent=context)


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", (HOWTO / page).read_text()):
            assert (HOWTO / target).exists(), f"{page}: {target}"
