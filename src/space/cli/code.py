"""`space run-code`: code executed by a sandbox's interpreter, output live, its value at the end."""

from __future__ import annotations

import base64
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.completion import SandboxArgument
from space.cli.context import Misuse, emit, examples, of, pairs, print_json, tell, writer
from space.cli.run import TIMED_OUT, Env, Timeout
from space.sdk.code import DEFAULT_SECONDS
from space.sdk.localfile import text as text_of

if TYPE_CHECKING:
    from space.sdk import CodeResult, Execution

FAILED = 1
PICTURES = {"png": "png", "jpeg": "jpg", "svg": "svg", "pdf": "pdf"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    lines = (
        "space run-code sb-... '1 + 1'",
        "space run-code sb-... --file plot.py --save pictures",
        "echo 'echo $RANDOM' | space run-code sb-... - -l bash",
    )
    app.command("run-code", epilog=examples(*lines))(run_code)


def run_code(
    context: typer.Context,
    sandbox: SandboxArgument,
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="The code; - reads it from standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="A file with the code.")] = None,
    language: Annotated[
        str | None, typer.Option("--language", "-l", metavar="NAME", help="python (unless given), javascript, typescript, bash.")
    ] = None,
    within: Annotated[str | None, typer.Option("--context", "-c", metavar="ID", help="A context, in place of a language.")] = None,
    env: Env = None,
    timeout: Timeout = None,
    save: Annotated[Path | None, typer.Option("--save", metavar="DIR", help="Write pictures there, as 1.png, 2.svg.")] = None,
) -> int:
    """Execute code in a sandbox with a code interpreter; what was defined before is there.

    Prints output as it comes and then the value of the last expression. Exits with 1 when the code failed or its interpreter died, with 124
    when its time was over.
    """
    from space.sdk import Sandbox

    asked = of(context)
    text = _code(code, file)
    write, complain = writer(sys.stdout.fileno()), writer(sys.stderr.fileno(), must=False)
    live: dict[str, Any] = (
        {} if asked.json else {"on_stdout": lambda part: write(part.encode()), "on_stderr": lambda part: complain(part.encode())}
    )
    with asked.client() as client:
        execution = Sandbox.connect(sandbox, client=client).run_code(
            text, language=language, context=within, env=pairs(env or [], "--env"), timeout=timeout or DEFAULT_SECONDS, **live
        )
    if save is not None:
        _save(execution.results, save)
    if asked.json:
        print_json({"sandbox": sandbox, **document(execution)})
    else:
        _tell(execution)
    if execution.timed_out:
        return TIMED_OUT
    return 0 if execution.ok else FAILED


def _code(code: str | None, file: Path | None) -> str:
    if (code is None) == (file is None):
        raise Misuse("give the code, or --file with it", hint="- reads it from standard input")
    if file is not None:
        return text_of(file, what="code", most=1 << 20)
    return sys.stdin.read() if code == "-" else str(code)


def _tell(execution: Execution) -> None:
    if execution.text is not None:
        emit(execution.text)
    if execution.error is not None:
        print(execution.error.traceback or f"{execution.error.name}: {execution.error.value}", file=sys.stderr, flush=True)
    if execution.died:
        tell("the interpreter died: what was defined is lost, and the next code finds a new one (was it out of memory?)")


def _save(results: tuple[CodeResult, ...], place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for number, result in enumerate(results, 1):
        for name, suffix in PICTURES.items():
            if (picture := getattr(result, name)) is not None:
                (place / f"{number}.{suffix}").write_bytes(picture.encode() if isinstance(picture, str) else picture)


def document(execution: Execution) -> dict[str, Any]:
    """An execution as JSON: pictures as base64, forms that a result has not are left out."""
    found = asdict(execution) | {"results": [_result(each) for each in execution.results], "ok": execution.ok}
    return {name: value for name, value in found.items() if value is not None}


def _result(result: CodeResult) -> dict[str, Any]:
    forms = {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in asdict(result).items()}
    return {name: value for name, value in forms.items() if value is not None and value != {}}
