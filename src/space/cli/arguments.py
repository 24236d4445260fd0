"""The words of a command line, put into the order that the parser wants: decisions only.

    space [GLOBAL OPTIONS] COMMAND [OPTIONS AND ARGUMENTS] -- PROGRAM

Global options may stand anywhere before the program. The program of `run`, `exec`, `start` and `shell` begins behind `--`, or at the first
word that is neither an option, nor an option's value, nor the sandbox's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

GLOBAL_FLAGS = ("--json",)
GLOBAL_VALUES = ("--instance", "--url", "--key-file")
# Commands that run a program, and how many words come before it.
WITH_PROGRAM: Mapping[str, int] = {"run": 0, "exec": 1, "start": 1, "shell": 1}

ValuesOf = Callable[[str], Collection[str]]


def command_at(arguments: Sequence[str]) -> int | None:
    """Where the command's name stands: the first word that is no global option or its value."""
    at = 0
    while at < len(arguments):
        if arguments[at] in GLOBAL_VALUES:
            at += 1
        elif not arguments[at].startswith("-"):
            return at
        at += 1
    return None


def command_of(arguments: Sequence[str]) -> str | None:
    """The command's name."""
    at = command_at(arguments)
    return None if at is None else arguments[at]


def arranged(arguments: Sequence[str], values_of: ValuesOf) -> list[str]:
    """The arguments with global options in front and `--` before the program. values_of: a command's options that take a value."""
    at = command_at(arguments)
    end, program = _program_at(arguments, at, values_of)
    front: list[str] = []
    others: list[str] = []
    words = iter(arguments[:end])
    for word in words:
        if word in GLOBAL_FLAGS or word.startswith(tuple(f"{name}=" for name in GLOBAL_VALUES)):
            front.append(word)
        elif word in GLOBAL_VALUES:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            others.append(word)
    return front + others + (["--", *arguments[program:]] if program is not None else [])


def _program_at(arguments: Sequence[str], command: int | None, values_of: ValuesOf) -> tuple[int, int | None]:
    """Where what is for us ends, and where what is behind it begins, if anything is."""
    before = None if command is None else WITH_PROGRAM.get(arguments[command])
    if command is None or before is None:
        if "--" not in arguments:
            return len(arguments), None
        end = list(arguments).index("--")
        return end, end + 1
    values = {*values_of(arguments[command]), *GLOBAL_VALUES}
    at = command + 1
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return at, at + 1
        if word.startswith("-") and len(word) > 1:
            at += _wants_next(word, values)
        elif before == 0:
            return at, at
        else:
            before -= 1
        at += 1
    return len(arguments), None


def _wants_next(option: str, values: Collection[str]) -> bool:
    """Whether the option's value is the next word: `--env A=1` and `-qe A=1`, not `--env=A=1` or `-eA=1`."""
    if option.startswith("--"):
        return option in values
    for place, letter in enumerate(option[1:], 2):
        if f"-{letter}" in values:
            return place == len(option)
    return False
