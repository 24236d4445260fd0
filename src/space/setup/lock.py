"""Write the locks again: `python3 -m space.setup.lock`, for the maintainer who adds or moves a dependency.

pip's own resolver says what it would install (through the machine's pip configuration), and each answer becomes one line with the
hash of its file: names, versions and hashes, never an address. Only wheels for the server's interpreter count, so nothing is
built from source on anybody's machine.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from space.setup import command

DEVELOPMENT = (
    "pytest",
    "pytest-xdist",
    "pytest-timeout",
    "hypothesis",
    "ruff",
    "mypy",
    "import-linter",
    "hatchling",
    "schemathesis",
    "boto3",
    "botocore",
    "moto",  # with the three that its server imports, without what its other services want
    "flask",
    "flask-cors",
    "py-partiql-parser",
)


def main() -> None:
    """Resolve server and development dependencies together and write requirements/server.txt and requirements/dev.txt."""
    root = Path(__file__).resolve().parents[3]
    declared = [
        text
        for file in (root / "packaging/sdk/pyproject.toml", root / "pyproject.toml")
        for text in tomllib.loads(file.read_text())["project"]["dependencies"]
        if not text.startswith("space-")
    ]
    server = resolve(declared)
    both = resolve([*(f"{name}=={version}" for name, (version, _) in server.items()), *DEVELOPMENT])
    (root / "requirements/server.txt").write_text(lines("The server's dependencies", server))
    added = {name: pin for name, pin in both.items() if name not in server}
    (root / "requirements/dev.txt").write_text(lines("What the tests need besides server.txt", added))


def resolve(wanted: list[str]) -> dict[str, tuple[str, str]]:
    """Name to (version, sha256) of everything that pip would install for `wanted`."""
    report = command.run(
        [
            "/usr/bin/python3",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--only-binary=:all:",
            "--report",
            "-",
            *wanted,
        ],
        what="resolve the dependencies",
    )
    pins = {}
    for item in json.loads(report)["install"]:
        name = item["metadata"]["name"].lower().replace("_", "-")
        pins[name] = (item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"])
    return pins


def lines(title: str, pins: dict[str, tuple[str, str]]) -> str:
    """A lock's text."""
    head = f"# {title}: written by `python3 -m space.setup.lock`, installed with --require-hashes.\n"
    return head + "".join(f"{name}=={version} --hash=sha256:{digest}\n" for name, (version, digest) in sorted(pins.items()))


if __name__ == "__main__":
    main()
