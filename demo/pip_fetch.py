"""Fetch files by package name through the machine's own pip: its index, mirrors, certificates, proxies and find-links.

    python3 pip_fetch.py DESTINATION FILE...          (FILE: a sdist's or wheel's file name)

Runs under the distribution's Python as an unprivileged uid. `pip download` would run a source distribution's build back end to
learn its metadata; this asks pip's finder for the candidates and pip's downloader for the bytes, and opens none of them. The names
below are pip's internals, the same since pip 20.3; Debian 12 has 23.0.1.
"""

# mypy: ignore-errors
# (pip has no public interface for this, and its types differ from release to release)
from __future__ import annotations

import sys

from pip._internal.commands import create_command
from pip._internal.models.target_python import TargetPython
from pip._internal.network.download import Downloader


def main(destination: str, wanted: list[str]) -> int:
    """Fetch every file of `wanted`; 1 when one is not to be had."""
    command = create_command("download")
    options, _ = command.parse_args(["--dest", destination])
    # The guest's tags, whatever this machine is.
    guest = TargetPython(
        platforms=["manylinux2014_x86_64", "linux_x86_64"], py_version_info=(3, 11), abis=["cp311", "abi3"], implementation="cp"
    )
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session, target_python=guest)
        download = Downloader(session, "off")
        for name in wanted:
            package = name.split("-")[0].replace("_", "-")
            found = [candidate.link for candidate in finder.find_all_candidates(package) if candidate.link.filename == name]
            if not found:
                print(f"pip finds no {name} (is its index reachable? `pip config list`, PIP_INDEX_URL)", file=sys.stderr)
                return 1
            if found[0].is_file:
                _copy(found[0].file_path, destination, name)
            else:
                download(found[0], destination)
    return 0


def _copy(source: str, destination: str, name: str) -> None:
    """A file of a find-links directory."""
    with open(source, "rb") as file, open(f"{destination}/{name}", "wb") as copy:  # noqa: PTH123  # pip's Python, kept plain
        copy.write(file.read())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
