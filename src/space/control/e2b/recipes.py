"""An E2B build as a recipe of ours: text to text, no I/O. What its steps bring are archives, unpacked by a shell in the builder.

RUN, USER, WORKDIR and ENV go by what stands before them, as in a Dockerfile; ENV is for the build alone, as E2B's SDKs say. `indices` says
for each of our steps which of the client's it belongs to (from 1), so that a failure names the caller's line.
"""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from space.control.e2b.faults import NotHere
from space.model.errors import InvalidArgument

STEP_SECONDS: Final = 3600
READY_SECONDS: Final = 600
_COPY: Final = r"""
archive=$1 source=$2 target=$3 owner=$4 mode=$5
made=$(mktemp -d /var/tmp/copy-XXXXXXXX)
trap 'rm -rf -- "$made"' EXIT
tar --no-same-owner -xf "$archive" -C "$made"
cd -- "$made"
shopt -s globstar dotglob
if [ -e "$source" ] || [ -L "$source" ]; then found=("$source"); else mapfile -t found < <(compgen -G "$source"); fi
if [ ${#found[@]} = 0 ]; then echo "nothing in the files is $source" >&2; exit 1; fi
if [ -n "$mode" ]; then chmod -R -- "$mode" "${found[@]}"; fi
chown -Rh -- "$owner:" "${found[@]}"
place() { if [ ! -d "$1" ]; then place "$(dirname -- "$1")"; mkdir -- "$1"; chown -- "$owner:" "$1"; fi; }
if [ ${#found[@]} = 1 ] && [ -d "${found[0]}" ] && [ ! -L "${found[0]}" ]; then
    place "$target"; find "${found[0]}" -mindepth 1 -maxdepth 1 -exec cp -a -t "$target" -- {} +
elif [ ${#found[@]} = 1 ] && [ "${target%/}" = "$target" ] && [ ! -d "$target" ]; then
    place "$(dirname -- "$target")"; cp -a -- "${found[0]}" "$target"
else
    place "$target"; cp -a -t "$target" -- "${found[@]}"
fi
"""
_ENTER: Final = 'if [ ! -d "$1" ]; then mkdir -p -- "$1"; chown -- "$2:" "$1"; fi'


class Step(Struct, frozen=True, rename="camel"):
    """One of the client's."""

    type: Annotated[str, Meta(max_length=16)]
    args: Annotated[list[Annotated[str, Meta(max_length=65_536)]], Meta(max_length=400)] = []
    files_hash: Annotated[str, Meta(max_length=64)] | None = None
    force: bool | None = None


class BuildStart(Struct, frozen=True, rename="camel"):
    """What is to be built."""

    from_image: Annotated[str, Meta(max_length=512)] | None = None
    from_template: Annotated[str, Meta(max_length=200)] | None = None
    from_image_registry: dict[str, Any] | None = None
    force: bool | None = None
    steps: Annotated[list[Step], Meta(max_length=150)] = []
    start_cmd: Annotated[str, Meta(max_length=65_536)] | None = None
    ready_cmd: Annotated[str, Meta(max_length=65_536)] | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """text: the recipe. archives: hashes of what comes along. indices: of our steps. titles: of the client's."""

    text: str
    archives: tuple[str, ...]
    indices: tuple[int, ...]
    titles: tuple[str, ...]


@dataclass(slots=True)
class _State:
    """What stands before a step."""

    user: str
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    forced: bool = False
    tables: list[dict[str, Any]] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    archives: dict[str, None] = field(default_factory=dict)

    def run(self, at: int, argv: Sequence[str], user: str, cwd: str) -> None:
        """A step of ours."""
        # An argument that the command does not see: what is forced is another step than any that was kept.
        said = [*argv, secrets.token_hex(8)] if self.forced else list(argv)
        table: dict[str, Any] = {"run": said, "user": user, "cwd": cwd, "timeout_seconds": STEP_SECONDS}
        self.tables.append(table | ({"env": dict(self.env)} if self.env else {}))
        self.indices.append(at)


def made(asked: BuildStart, *, base: str, user: str, cwd: str, memory_mib: int, disk_mib: int | None) -> Made:
    """The recipe over the template `base`, whose user and directory these are. InvalidArgument, NotHere."""
    if asked.from_image_registry is not None:
        raise NotHere("fromImageRegistry is not supported: no image registry is asked here")
    state = _State(user or "user", cwd or "/home/user", forced=bool(asked.force))
    for at, step in enumerate(asked.steps, 1):
        state.forced = state.forced or bool(step.force)
        _add(state, at, step)
    top: dict[str, Any] = {"version": 1, "memory_mib": memory_mib, "user": state.user, "cwd": state.cwd}
    if disk_mib is not None:
        top["disk_mib"] = disk_mib
    variables = [f"{name}={value}" for name, value in state.env.items()]
    if asked.start_cmd:
        top["start"] = ["/usr/bin/env", *variables, "/bin/bash", "-l", "-c", asked.start_cmd]
    if asked.ready_cmd:
        ready = {"run": ["/usr/bin/env", *variables, "/bin/bash", "-l", "-c", asked.ready_cmd], "timeout_seconds": READY_SECONDS}
        top["ready"] = ready
    text = _toml(top, base, state.tables)
    return Made(text, tuple(state.archives), tuple(state.indices), tuple(_title(step) for step in asked.steps))


def _add(state: _State, at: int, step: Step) -> None:
    args = step.args
    match step.type.upper():
        case "RUN" if args:
            user = args[1] if len(args) > 1 and args[1] else state.user
            state.run(at, ["/bin/bash", "-l", "-c", args[0], "bash"], user, state.cwd)
        case "ENV" if len(args) % 2 == 0:
            state.env |= dict(zip(args[::2], args[1::2], strict=True))
        case "WORKDIR" if args:
            state.cwd = _absolute(args[0], state.cwd)
            state.run(at, ["/bin/bash", "-ec", _ENTER, "workdir", state.cwd, state.user], "root", "/")
        case "USER" if args:
            state.user = args[0]
            state.run(at, ["/bin/bash", "-ec", 'id -u -- "$1" >/dev/null', "user", state.user], "root", "/")
        case "COPY" if len(args) >= 2:
            if not step.files_hash:
                raise InvalidArgument(f"step {at}: a COPY step has a filesHash")
            state.archives[step.files_hash] = None
            source, target = posixpath.normpath(args[0]), _absolute(args[1], state.cwd)
            owner = args[2] if len(args) > 2 and args[2] else state.user
            mode = args[3] if len(args) > 3 else ""
            slash = "/" if args[1].endswith("/") and target != "/" else ""
            archive = f"/dev/shm/space-build/files/{step.files_hash}"  # noqa: S108 (in the guest's memory)
            state.run(at, ["/bin/bash", "-ec", _COPY, "copy", archive, source, target + slash, owner, mode], "root", "/")
        case _:
            raise InvalidArgument(f"step {at}: {step.type[:16]!r} with {len(args)} arguments is no step (COPY, RUN, ENV, WORKDIR, USER)")


def _absolute(path: str, cwd: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = "/home/user" + path[1:]
    return posixpath.normpath(posixpath.join(cwd, path))


def _title(step: Step) -> str:
    said = " ".join(" ".join(step.args[: 1 if step.type.upper() == "RUN" else 2]).split())
    return f"{step.type.upper()} {said[:100]}"


def _toml(top: dict[str, Any], base: str, tables: list[dict[str, Any]]) -> str:
    lines = [f"{name} = {_value(value)}" for name, value in top.items()]
    lines.append(f"[base]\ntemplate = {_value(base)}")
    lines += ["[[step]]\n" + "\n".join(f"{name} = {_value(value)}" for name, value in table.items()) for table in tables]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A TOML value: its strings are JSON's, but for DEL."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_value(name)} = {_value(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_value, value)) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return str(value)
