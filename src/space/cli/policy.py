"""`space policy`: policies checked, explained, compared, tested, and presets found, all offline. Nothing here enforces anything.

The commands are the server's, so what they need of it is imported when they are called.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from space.cli import policies
from space.cli.context import Misuse, examples, of, print_json, print_table, printable
from space.cli.lazy import loaded
from space.model.errors import InvalidArgument

_Presets = Annotated[Path | None, typer.Option("--presets", metavar="DIR", help="Where presets are (/etc/space/presets).")]
_Bundles = Annotated[list[str] | None, typer.Option("--bundle", metavar="NAME", help="A name that `ca` may have; repeatable.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(no_args_is_help=True, help="Check, explain, compare, test, store and apply egress policies.", rich_markup_mode=None)
    group.command("check", epilog=examples("space policy check policy.toml /etc/space/presets/pip.toml"))(check)
    group.command(
        "explain",
        epilog=examples(
            "space policy explain operator.toml policy.toml https://index.example.com/simple/x/",
            "space policy explain policy.toml wss://example.com/socket",
            "space policy explain sb-... https://index.example.com/simple/x/",
        ),
    )(explain)
    group.command("diff", epilog=examples("space policy diff --fail-on-wider old.toml new.toml"))(diff)
    group.command("test", epilog=examples("space policy test policy.toml cases.toml"))(hold)
    group.command(
        "discover",
        epilog=examples("space policy discover pip > pip.toml", "space policy discover all --write"),
    )(discover)
    policies.add_to(group)
    app.add_typer(group, name="policy")


def check(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Policies or presets, TOML or JSON.")],
    presets: _Presets = None,
    bundles: _Bundles = None,
) -> int:
    """Say every mistake of policies, with its place and a hint, and what is risky. Exit status 1 when there is a mistake."""
    refused = loaded("space.core.policy.loader", "PolicyRefused")
    known, names = _known(presets, bundles)
    answers: list[dict[str, Any]] = []
    for file in files:
        try:
            found = loaded("space.policy.files", "read")(file, known, names)
        except refused as mistakes:
            answers.append(_checked(file, mistakes=mistakes.notes))
        else:
            rules = getattr(found, "policy", found).rules
            answers.append(_checked(file, rules=len(rules), warnings=found.warnings))
    if of(context).json:
        print_json({"ok": all(answer["ok"] for answer in answers), "files": answers})
    else:
        for answer in answers:
            for kind, notes in (("mistake", answer["mistakes"]), ("warning", answer["warnings"])):
                for note in notes:
                    hint = f" ({note['hint']})" if note["hint"] else ""
                    print(printable(f"{answer['file']}: {kind}: {note['path']}: {note['message']}{hint}"))
            if answer["ok"]:
                print(printable(f"{answer['file']}: {_counted(answer['rules'])}, no mistake"))
    return 0 if all(answer["ok"] for answer in answers) else 1


def explain(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE|SANDBOX... URL", help="The layers, the operator's first, or a sandbox; then what is asked for."),
    ],
    method: Annotated[str, typer.Option("--method", "-X", metavar="METHOD", help="As it is sent; upper and lower case differ.")] = "GET",
    websocket: Annotated[bool, typer.Option("--websocket", help="The request asks for a WebSocket.")] = False,
    foreign: Annotated[bool, typer.Option("--foreign", help="The request carries a credential of the guest's own.")] = False,
    presets: _Presets = None,
    bundles: _Bundles = None,
) -> int:
    """Say what becomes of a URL: its name, the connection, the request; in each layer, by which rule, and why."""
    *files, text = words
    if not files:
        raise Misuse("explain takes one to three policies and a URL", hint="space policy explain policy.toml https://example.com/")
    if len(files) == 1 and policies.is_sandbox(files[0]):
        policies.explain_of(context, files[0], text, method=method, websocket=websocket, foreign=foreign)
        return 0
    stack = _stack([Path(file) for file in files], presets, bundles)
    try:
        url = loaded("space.core.policy.url", "parse")(text)
    except ValueError as error:
        raise Misuse(str(error)) from None
    found = loaded("space.core.policy.explain", "account")(stack, url, method=method, websocket=websocket, foreign=foreign)
    outcome = loaded("space.core.policy.explain", "outcome")
    if of(context).json:
        steps = [{"step": step.asked, "outcome": outcome(step.verdict), "lines": step.lines} for step in found.steps]
        print_json({"outcome": outcome(found.verdict), "rule": _rule_of(found.verdict), "steps": steps})
        return 0
    for step in found.steps:
        layers = step.lines[:-1]
        alone = len(layers) == 1 and not step.differs
        for at, line in enumerate(layers if alone else step.lines):
            print(printable(f"{step.asked if at == 0 else '':8} {line}"))
    return 0


def diff(
    context: typer.Context,
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The policy as it was.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The policy as it is to be.")],
    fail_on_wider: Annotated[bool, typer.Option("--fail-on-wider", help="Exit status 1 when anything opens.")] = False,
    presets: _Presets = None,
    bundles: _Bundles = None,
) -> int:
    """Say what a change of a policy opens and closes. A change that opens nothing may be called wider, never the reverse."""
    known, names = _known(presets, bundles)
    before, after = (loaded("space.policy.files", "policy")(file, known, names).policy for file in (old, new))
    found = loaded("space.core.policy.difference", "difference")(before, after)
    described = loaded("space.core.policy.difference", "described")
    added = [described(rule) for rule in found.added] + [_block(block) for block in found.added_blocks] + ["open"] * found.opened
    removed = [described(rule) for rule in found.removed] + [_block(block) for block in found.removed_blocks] + ["open"] * found.closed
    if of(context).json:
        print_json({"added": added, "removed": removed, "mode": found.mode, "wider": found.wider, "widens": found.widens})
    else:
        lines = [f"+ {line}" for line in added] + [f"- {line}" for line in removed]
        lines += [f"mode: {' -> '.join(found.mode)}"] if found.mode else []
        lines += [f"wider: {line}" for line in found.wider] or ["not wider"]
        print("\n".join(map(printable, lines)))
    return 1 if found.widens and fail_on_wider else 0


def hold(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="FILE... CASES", help="The layers, the operator's first, then the table.")],
    presets: _Presets = None,
    bundles: _Bundles = None,
) -> int:
    """Hold policies to a table of expectations (docs/policy.md). Exit status 1 when one is not met."""
    *files, table = words
    if not files:
        raise Misuse("test takes one to three policies and a table", hint="space policy test policy.toml cases.toml")
    stack = _stack([Path(file) for file in files], presets, bundles)
    try:
        cases = loaded("space.policy.cases", "cases")(loaded("space.policy.files", "decoded")(Path(table)))
    except loaded("space.core.policy.loader", "PolicyRefused") as refused:
        raise InvalidArgument(f"{table}: {refused}") from None
    results = loaded("space.policy.cases", "run")(stack, cases)
    failed = [result for result in results if not result.ok]
    if of(context).json:
        print_json({"ok": not failed, "cases": [_held(result) for result in results]})
    else:
        if failed:
            expected = [one.case.expect + (f" by {one.case.rule}" if one.case.rule else "") for one in failed]
            found = [one.outcome + (f" by {one.rule}" if one.rule else "") for one in failed]
            rows = [(one.case.method, one.case.text, *pair) for one, pair in zip(failed, zip(expected, found, strict=True), strict=True)]
            print_table(("METHOD", "URL", "EXPECTED", "FOUND"), rows)
        print(f"{len(results) - len(failed)} of {len(results)} expectations are met")
    return 1 if failed else 0


def discover(
    context: typer.Context,
    managers: Annotated[list[str] | None, typer.Argument(metavar="[pip|apt|npm|cargo|go|all]...", help="Which; all unless given.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Fetch no page: leave out where an index's links lead.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Put them where policies find them, instead of printing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --write: replace a preset that says something else.")] = False,
    presets: _Presets = None,
) -> int:
    """Make presets of what this machine's own package managers fetch from: read-only rules, and the settings for guests.

    Exit status 1 when one has no rule. One page of each index is fetched, without credentials, to see where its links lead.
    """
    known = loaded("space.policy.discover", "MANAGERS")
    names = list(known) if not managers or "all" in managers else list(dict.fromkeys(managers))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Misuse(f"there is no package manager {unknown[0]!r} that we know", hint="known: all, " + ", ".join(known))
    folder = presets or loaded("space.policy.files", "PRESETS")
    machine = loaded("space.policy.discover", "Machine")(offline=offline)
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        text, rules = loaded("space.policy.discover", "preset")(name, machine)
        written = bool(write and rules) and loaded("space.policy.files", "write")(folder, name, text, replace=force)
        found[name] = {"rules": rules, "text": text, "written": written}
        if write and not of(context).json:
            said = "written" if written else "is already so" if rules else "no rule was found; see what it says without --write"
            print(printable(f"{folder / name}.toml: {_counted(rules)}: {said}"))
        elif not of(context).json:
            print(text)
    if of(context).json:
        print_json({"presets": found})
    return 0 if all(one["rules"] for one in found.values()) else 1


def _known(presets: Path | None, bundles: list[str] | None) -> tuple[Any, frozenset[str]]:
    names = frozenset(bundles or ())
    if presets is not None and not presets.is_dir():
        raise Misuse(f"{presets} is no directory")
    return loaded("space.policy.files", "presets")(presets or loaded("space.policy.files", "PRESETS"), names), names


def _stack(files: list[Path], presets: Path | None, bundles: list[str] | None) -> Any:
    if len(files) > 3:
        raise Misuse(f"{len(files)} policies: there are at most three layers (operator, tenant, sandbox)")
    known, names = _known(presets, bundles)
    policies = [loaded("space.policy.files", "policy")(file, known, names).policy for file in files]
    layer, stack = loaded("space.core.policy.verdict", "Layer"), loaded("space.core.policy.verdict", "Stack")
    return stack([layer(policy) for policy in policies])


def _held(one: Any) -> dict[str, Any]:
    asked = {"url": one.case.text, "method": one.case.method, "expect": one.case.expect}
    return asked | {"ok": one.ok, "outcome": one.outcome, "rule": one.rule}


def _checked(file: Path, *, rules: int = 0, mistakes: Any = (), warnings: Any = ()) -> dict[str, Any]:
    notes = {"mistakes": [asdict(note) for note in mistakes], "warnings": [asdict(note) for note in warnings]}
    return {"file": str(file), "ok": not mistakes, "rules": rules, **notes}


def _counted(rules: int) -> str:
    return f"{rules} rule" + ("" if rules == 1 else "s")


def _block(block: Any) -> str:
    return f"cidr {block.network}" + (":" + ",".join(map(str, sorted(block.ports))) if block.ports is not None else "")


def _rule_of(verdict: Any) -> str | None:
    name: str | None = loaded("space.policy.cases", "rule_of")(verdict)
    return name
