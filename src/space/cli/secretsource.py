"""Where the command line takes a secret's value from: standard input, a file, the environment, a prompt, or a manager's command.

Never an argument: those are seen by everybody on the machine, and kept in a shell's history. Nothing here puts a value into words.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from space.cli.context import Misuse
from space.model.secret import Secret

MOST_BYTES = 65_536
COMMAND_SECONDS = 120.0
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)\Z", re.DOTALL)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?\Z', re.DOTALL)
_SINGLE = re.compile(r"'([^']*)'\s*(?:#.*)?\Z", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def value(file: Path | None, from_env: str | None, command: str | None) -> Secret:
    """What one of them gives; else standard input, or a prompt on a terminal. One line end behind it is none of it. Misuse."""
    if sum(one is not None for one in (file, from_env, command)) > 1:
        raise Misuse("--file, --from-env and --command are three places: name one")
    if from_env is not None:
        found = os.environb.get(os.fsencode(from_env))
        if found is None:
            raise Misuse(f"there is no variable {from_env} in the environment")
        data = found
    elif file is not None:
        data = read(file)
    elif command is not None:
        data = said_by(command)
    elif sys.stdin.isatty():
        data = getpass.getpass("value: ").encode()
    else:
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    return Secret(_checked(data.removesuffix(b"\n").removesuffix(b"\r")))


def parts(found: Secret) -> dict[str, Any]:
    """All parts of a secret, of a JSON object of text. Misuse."""
    try:
        said = json.loads(found.reveal())
    except (ValueError, RecursionError):
        raise Misuse("--parts: what came is no JSON", hint='such as {"refresh_token": "..."}') from None
    if not isinstance(said, dict) or not all(isinstance(one, str) for one in said.values()):
        raise Misuse("--parts: what came is no JSON object of text", hint='such as {"refresh_token": "..."}')
    return {name: Secret(one.encode()) for name, one in said.items()}


def read(file: Path) -> bytes:
    """A file; `-` is standard input. Misuse."""
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(MOST_BYTES + 1)
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise Misuse(f"cannot read {str(file)!r}: {error.strerror}") from None


def said_by(command: str) -> bytes:
    """What a program writes: words as a shell would part them, but no shell. It runs as whoever called. Misuse."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Misuse(f"--command: {error}") from None
    if not words:
        raise Misuse("--command is empty", hint="such as --command 'pass show code-host'")
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise Misuse(f"{words[0]} has not ended after {COMMAND_SECONDS:g} s") from None
    except OSError as error:
        raise Misuse(f"cannot run {words[0]!r}: {error.strerror}") from None
    if done.returncode:
        raise Misuse(f"{words[0]} ended with status {done.returncode}", hint="nothing was stored")
    return done.stdout


def several(data: bytes) -> Mapping[str, Secret]:
    """Variables and their values: lines of an environment file, or a JSON object of text. Misuse names the line, never what is in it."""
    _checked(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Misuse("what is to be imported is no UTF-8 text") from None
    if text.lstrip().startswith("{"):
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            raise Misuse("what is to be imported begins like JSON, and is none") from None
        if not all(isinstance(one, str) for one in said.values()):
            raise Misuse("what is to be imported is no JSON object of text")
        return {name: Secret(one.encode()) for name, one in said.items()}
    found: dict[str, Secret] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parted = _LINE.match(line)
        if parted is None:
            raise Misuse(f"line {number} is no NAME=value")
        if parted[1] in found:
            raise Misuse(f"line {number}: {parted[1]} was there before")
        found[parted[1]] = Secret(_unquoted(parted[2].strip(), number).encode())
    return found


def name_of(variable: str) -> str:
    """A secret's name for a variable: `GITHUB_TOKEN` is `github-token`."""
    return variable.lower().strip("_").replace("_", "-")


def _unquoted(text: str, number: int) -> str:
    if text.startswith('"'):
        quoted = _DOUBLE.match(text)
        if quoted is None:
            raise Misuse(f"line {number}: its quotation mark is not closed")
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), quoted[1])
    if text.startswith("'"):
        quoted = _SINGLE.match(text)
        if quoted is None:
            raise Misuse(f"line {number}: its quotation mark is not closed")
        return quoted[1]
    return re.split(r"\s+#", text, maxsplit=1)[0]


def _checked(data: bytes) -> bytes:
    if not data:
        raise Misuse("the value is empty", hint="give it by standard input, --file, --from-env or --command")
    if len(data) > MOST_BYTES:
        raise Misuse(f"the value is longer than {MOST_BYTES} bytes")
    return data
