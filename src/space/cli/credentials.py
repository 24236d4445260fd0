"""`space secret` and `space grant`: credentials that sandboxes use and never see."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli import secretsource
from space.cli.completion import SandboxArgument, sandboxes
from space.cli.completion import grants as completed_grants
from space.cli.completion import secrets as completed_secrets
from space.cli.context import Misuse, emit, examples, note, of, pairs, print_facts, print_json, print_table, printable, tell, when
from space.cli.egress_log import Denied, Since, moment
from space.model.credentials import SECRET_KINDS
from space.model.egresslog import EgressRecord

if TYPE_CHECKING:
    from space.model.credentials import GrantInfo, SecretInfo
    from space.sdk import EgressGap

_Secret = Annotated[str, typer.Argument(metavar="NAME", help="Of a secret.", autocompletion=completed_secrets)]
_New = Annotated[str, typer.Argument(metavar="NAME", help="1 to 63 of a-z, 0-9, '.', '_', '-'.")]
_Grant = Annotated[str, typer.Argument(metavar="NAME", help="Of a grant.", autocompletion=completed_grants)]
_File = Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The value is what this file holds.")]
_Env = Annotated[str | None, typer.Option("--from-env", metavar="VAR", help="The value is that of this variable.")]
_Command = Annotated[str | None, typer.Option("--command", metavar="COMMAND", help="The value is what this program writes; no shell.")]
_Kind = Annotated[str, typer.Option(metavar="KIND", help=", ".join(SECRET_KINDS) + ".")]
_Parts = Annotated[bool, typer.Option("--parts", help="What comes is a JSON object of the kind's secret parts.")]
_Public = Annotated[
    list[str] | None, typer.Option("--public", metavar="K=V", help="A part that may be told: endpoint, client_id, ...; repeatable.")
]
_Labels = Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="Words of yours; repeatable.")]
_Description = Annotated[str, typer.Option(metavar="TEXT", help="What it is.")]
_Expires = Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 with a zone; it is not used from then on.")]
_PUBLIC = frozenset({"endpoint", "client_id", "scope", "audience", "access_key_id", "auth"})
_MAIN = {"static": "value", "oauth_refresh": "refresh_token", "client_credentials": "client_secret", "aws": "secret_access_key"}
_MORE = {"allow_extra_args": True}  # looked at by `_not_argued`


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    secret = typer.Typer(no_args_is_help=True, help="Store credentials that sandboxes use and never see.", rich_markup_mode=None)
    lines = ("space secret put code-host < token.txt", "space secret put s3 --kind aws --public access_key_id=AKID --from-env KEY")
    secret.command("put", context_settings=_MORE, epilog=examples(*lines, "space secret put code-host --command 'pass show code-host'"))(
        put
    )
    secret.command("list", epilog=examples("space secret list"))(list_secrets)
    secret.command("show", epilog=examples("space secret show code-host"))(show)
    secret.command("rotate", context_settings=_MORE, epilog=examples("space secret rotate code-host --from-env NEW_TOKEN"))(rotate)
    secret.command("revoke", epilog=examples("space secret revoke code-host"))(revoke)
    secret.command("delete", epilog=examples("space secret delete code-host"))(delete)
    secret.command(
        "import", epilog=examples("space secret import .env --only API_KEY", "space secret import --command 'vault-export app'")
    )(import_)
    secret.command("log", epilog=examples("space secret log --secret code-host --since 1h", "space secret log -f --denied"))(log)
    app.add_typer(secret, name="secret")
    grant = typer.Typer(no_args_is_help=True, help="Say which sandbox may use which secret, and where.", rich_markup_mode=None)
    made = ("space grant create code-host grant.toml", "space grant create api --secret api-key --host api.example.com --all")
    grant.command("create", epilog=examples(*made))(create)
    grant.command("list", epilog=examples("space grant list", "space grant list --secret code-host"))(list_grants)
    grant.command("show", epilog=examples("space grant show code-host"))(show_grant)
    grant.command("revoke", epilog=examples("space grant revoke code-host"))(revoke_grant)
    grant.command("delete", epilog=examples("space grant delete code-host"))(delete_grant)
    grant.command("attach", epilog=examples("space grant attach sb-... code-host"))(attach)
    grant.command("detach", epilog=examples("space grant detach sb-... code-host"))(detach)
    app.add_typer(grant, name="grant")


# -- secrets -----------------------------------------------------------------------------------------------------------


def put(
    context: typer.Context,
    name: _New,
    kind: _Kind = "static",
    file: _File = None,
    from_env: _Env = None,
    command: _Command = None,
    parts: _Parts = False,
    public: _Public = None,
    label: _Labels = None,
    description: _Description = "",
    expires: _Expires = None,
    replace: Annotated[bool, typer.Option("--replace", help="Another version, where the name is in use.")] = False,
) -> None:
    """Store a secret. Its value comes by standard input, a prompt, or one of the options; nothing shows it again."""
    _not_argued(context)
    value, more = _given(kind, file, from_env, command, public, parts=parts)
    with of(context).client() as client:
        found = client.put_secret(
            name, value, **more, labels=pairs(label or [], "--label"), description=description, expires=expires, replace=replace
        )
    _told(context, found)


def rotate(
    context: typer.Context,
    name: _Secret,
    kind: _Kind = "",
    file: _File = None,
    from_env: _Env = None,
    command: _Command = None,
    parts: _Parts = False,
    public: _Public = None,
) -> None:
    """Give a secret another value; what is said of it stays. Grants use it from the next request on."""
    _not_argued(context)
    with of(context).client() as client:
        before = client.secret(name)
        value, more = _given(kind or before.kind, file, from_env, command, public, parts=parts)
        more["public"] = {**before.public, **more["public"]}
        expires = None if before.expires_at is None else dt.datetime.fromtimestamp(before.expires_at, dt.UTC).isoformat()
        found = client.rotate_secret(name, value, **more, labels=before.labels, description=before.description, expires=expires)
    _told(context, found)


def list_secrets(context: typer.Context) -> None:
    """List the tenant's secrets, without their values."""
    with of(context).client() as client:
        found = list(client.secrets())
    if of(context).json:
        print_json({"secrets": [asdict(one) for one in found]})
        return
    rows = [(one.name, one.kind, str(one.version), str(one.grants), _state(one), when(one.rotated_at or one.created_at)) for one in found]
    print_table(("NAME", "KIND", "VERSION", "GRANTS", "STATE", "CHANGED"), rows)


def show(context: typer.Context, name: _Secret) -> None:
    """Show a secret, without its value."""
    with of(context).client() as client:
        found = client.secret(name)
    if of(context).json:
        print_json(found)
        return
    facts: dict[str, object] = {"name": found.name, "kind": found.kind, "version": found.version, "state": _state(found)}
    facts |= {"description": found.description, **{f"public {key}": text for key, text in found.public.items()}}
    facts |= {f"label {key}": text for key, text in found.labels.items()}
    times = {"created": found.created_at, "rotated": found.rotated_at, "expires": found.expires_at, "revoked": found.revoked_at}
    print_facts(facts | {key: when(at) for key, at in times.items()} | {"grants": found.grants})


def revoke(context: typer.Context, name: _Secret) -> None:
    """Destroy a secret's value and keep its name: who uses it is refused, and that is told as an event."""
    with of(context).client() as client:
        _told(context, client.revoke_secret(name))


def delete(context: typer.Context, name: _Secret) -> None:
    """Forget a secret that no grant names."""
    with of(context).client() as client:
        client.delete_secret(name)
    if of(context).json:
        print_json({"deleted": name})


def import_(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Lines NAME=value, or a JSON object; - is standard input.")] = None,
    command: Annotated[str | None, typer.Option(metavar="COMMAND", help="What this program writes, instead; no shell.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this variable; repeatable.")] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Before the names of the secrets.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Another version, where a name is in use.")] = False,
) -> None:
    """Store each variable of an environment file as a secret: GITHUB_TOKEN as github-token. Stops at the first that is refused."""
    if (file is None) == (command is None):
        raise Misuse("a file, or --command", hint="space secret import .env")
    found = dict(secretsource.several(secretsource.read(file) if file is not None else secretsource.said_by(command or "")))
    if missing := [name for name in only or [] if name not in found]:
        raise Misuse(f"--only {missing[0]}: it is not there")
    wanted = {prefix + secretsource.name_of(name): value for name, value in found.items() if not only or name in only}
    if not wanted:
        raise Misuse("there is nothing to import")
    with of(context).client() as client:
        stored = [client.put_secret(name, value, replace=replace) for name, value in wanted.items()]
    if of(context).json:
        print_json({"secrets": [asdict(one) for one in stored]})
        return
    for one in stored:
        emit(one.name)


def log(
    context: typer.Context,
    secret: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this secret.", autocompletion=completed_secrets)] = None,
    grant: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this grant.", autocompletion=completed_grants)] = None,
    sandbox: Annotated[str | None, typer.Option(metavar="ID", help="Only of this sandbox.", autocompletion=sandboxes)] = None,
    since: Since = None,
    denied: Denied = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin behind this one.")] = None,
) -> None:
    """Tell which credentials were asked for, released or refused, the oldest first. JSON: a line for each."""
    with of(context).client() as client:
        asked: dict[str, Any] = {"secret": secret, "grant": grant, "sandbox": sandbox, "follow": follow, "denied": denied}
        with closing(client.credential_log(after, since=moment(since), **asked)) as found:
            for record in found:
                _line(context, record)


def _line(context: typer.Context, record: EgressRecord | EgressGap) -> None:
    if of(context).json:
        print_json(record)
    elif not isinstance(record, EgressRecord):
        tell(f"records up to {record.removed} are kept no longer")
    else:
        what = f"{record.method} {record.name}:{record.port}{record.path}".strip()
        version = f" v{record.version}" if record.version else ""
        words = (record.at.replace("T", " ").removesuffix("Z"), record.sandbox, record.reason or "released", record.grant)
        emit(printable(" ".join((*words, f"{record.secret}{version}", what))))


def _not_argued(context: typer.Context) -> None:
    """A value that was given as an argument is not told again, as the words of a usual mistake would be."""
    if context.args:
        hint = "give it by standard input, --file or --from-env; one that was an argument was seen by this machine, and may be in a history"
        raise Misuse("a value is never an argument: nothing was stored", hint=hint)


def _given(
    kind: str, file: Path | None, from_env: str | None, command: str | None, public: list[str] | None, *, parts: bool
) -> tuple[Any, dict[str, Any]]:
    """The value, and what is said of it."""
    if kind not in SECRET_KINDS:
        raise Misuse("--kind: it is none", hint="one of " + ", ".join(SECRET_KINDS))
    told: dict[str, str] = {}
    for text in public or []:
        name, separator, said = text.partition("=")
        if not separator or name not in _PUBLIC:  # what is secret is not told back
            raise Misuse("--public takes K=V of what may be told", hint="one of " + ", ".join(sorted(_PUBLIC)))
        told[name] = said
    found = secretsource.value(file, from_env, command)
    value: Any = secretsource.parts(found) if parts else found if kind == "static" else {_MAIN[kind]: found}
    return value, {"kind": kind, "public": told}


def _told(context: typer.Context, found: SecretInfo) -> None:
    if of(context).json:
        print_json(found)
    else:
        note(f"{found.name} is at version {found.version}" + (", revoked" if found.revoked_at is not None else ""))


def _state(one: SecretInfo | GrantInfo) -> str:
    if one.revoked_at is not None:
        return "revoked"
    grant, used = getattr(one, "grant", {}), getattr(one, "used", 0)
    expires = _seconds(grant.get("until")) if grant else getattr(one, "expires_at", None)
    if expires is not None and expires <= dt.datetime.now(dt.UTC).timestamp():
        return "expired"
    return "used up" if used >= (grant.get("uses") or used + 1) else "ok"


def _seconds(until: str | None) -> float | None:
    return dt.datetime.fromisoformat(until).timestamp() if until else None


# -- grants ------------------------------------------------------------------------------------------------------------


def create(
    context: typer.Context,
    name: _New,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="TOML, or JSON by its name; else the options say it.")] = None,
    secret: Annotated[str | None, typer.Option(metavar="NAME", help="Which secret.", autocompletion=completed_secrets)] = None,
    host: Annotated[str | None, typer.Option(metavar="NAME", help="Toward which host, by https.")] = None,
    port: Annotated[int, typer.Option(metavar="N", help="Its port.")] = 443,
    method: Annotated[list[str] | None, typer.Option(metavar="METHOD", help="Only these; repeatable.")] = None,
    path: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Only these, such as /repos/**; repeatable.")] = None,
    header: Annotated[str | None, typer.Option(metavar="NAME", help="Which field it goes into (authorization).")] = None,
    template: Annotated[str | None, typer.Option(metavar="TEXT", help="The field's value, such as 'token {}'.")] = None,
    basic: Annotated[str | None, typer.Option(metavar="USER", help="It is the password of Basic authentication.")] = None,
    query: Annotated[str | None, typer.Option(metavar="NAME", help="It is this parameter of the query.")] = None,
    env: Annotated[str | None, typer.Option(metavar="VAR", help="A placeholder in this variable stands for it, in that field.")] = None,
    sandbox: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Who: this sandbox; repeatable.", autocompletion=sandboxes)
    ] = None,
    of_template: Annotated[
        list[str] | None, typer.Option("--template-of", metavar="NAME", help="Who: sandboxes of it; repeatable.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Who: sandboxes with all of these as metadata.")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Who: every sandbox of the tenant.")] = False,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 with a zone.")] = None,
    rate: Annotated[str | None, typer.Option(metavar="COUNT/SECONDS", help="Of the secret, over all sandboxes.")] = None,
    uses: Annotated[int | None, typer.Option(metavar="N", help="So many requests, and then no more.")] = None,
    approval: Annotated[bool, typer.Option("--approval", help="Each request waits for a person's word.")] = False,
    forks: Annotated[bool, typer.Option("--forks", help="Forks of sandboxes may have it as well.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="In the place of the one that has this name.")] = False,
) -> None:
    """Let sandboxes use a secret toward a host. Without any of the "who" options: those that it is attached to."""
    if (file is None) == (secret is None):
        raise Misuse("a file, or --secret and --host", hint="space grant create code-host grant.toml")
    whole: Any = file
    if secret is not None:
        if host is None:
            raise Misuse("--secret needs --host: a credential is for one host")
        who = {"sandboxes": sandbox, "templates": of_template, "labels": pairs(label, "--label") if label else None, "all": everyone}
        where = {"host": host, "port": port, "methods": method, "paths": path}
        limits = {"until": until, "rate": None if rate is None else _rate(rate), "uses": uses, "approval": approval, "forks": forks}
        slot = _slot(header, template, basic, query, env)
        whole = {"secret": secret, "where": _some(where), "slot": slot, "who": _some(who), **_some(limits)}
    with of(context).client() as client:
        found = client.put_grant(name, whole, replace=replace)
    print_json(found) if of(context).json else note(f"{found.name} holds")


def list_grants(
    context: typer.Context,
    secret: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this secret.", autocompletion=completed_secrets)] = None,
) -> None:
    """List the tenant's grants."""
    with of(context).client() as client:
        found = list(client.grants(secret=secret))
    if of(context).json:
        print_json({"grants": [asdict(one) for one in found]})
        return
    rows = [(one.name, one.secret, _where(one), str(one.attached), _state(one), when(one.created_at)) for one in found]
    print_table(("NAME", "SECRET", "WHERE", "ATTACHED", "STATE", "CREATED"), rows)


def show_grant(context: typer.Context, name: _Grant) -> None:
    """Show a grant."""
    import json

    with of(context).client() as client:
        found = client.grant(name)
    if of(context).json:
        print_json(found)
        return
    facts = {"state": _state(found), "created": when(found.created_at), "revoked": when(found.revoked_at)}
    print_facts(facts | {"used": found.used, "attached": found.attached})
    emit(json.dumps(found.grant, indent=2))


def revoke_grant(context: typer.Context, name: _Grant) -> None:
    """End a grant at once and keep its name: what uses it is cut, and refused from now on."""
    with of(context).client() as client:
        found = client.revoke_grant(name)
    print_json(found) if of(context).json else note(f"{found.name} is revoked")


def delete_grant(context: typer.Context, name: _Grant) -> None:
    """End a grant at once and forget it."""
    with of(context).client() as client:
        client.delete_grant(name)
    if of(context).json:
        print_json({"deleted": name})


def attach(context: typer.Context, sandbox: SandboxArgument, name: _Grant) -> None:
    """Let a sandbox have a grant, whatever that selects, over all of its lives; forks of it do not."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        Sandbox.connect(sandbox, client=client).attach_grant(name)
    if of(context).json:
        print_json({"sandbox": sandbox, "attached": name})


def detach(context: typer.Context, sandbox: SandboxArgument, name: _Grant) -> None:
    """Take a grant that was attached from a sandbox, at once."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        Sandbox.connect(sandbox, client=client).detach_grant(name)
    if of(context).json:
        print_json({"sandbox": sandbox, "detached": name})


def _slot(header: str | None, template: str | None, basic: str | None, query: str | None, env: str | None) -> dict[str, Any]:
    if sum(one is not None for one in (basic, query, header)) > 1:
        raise Misuse("--header, --basic and --query are three places: name one")
    place = "basic" if basic is not None else "query" if query is not None else "header"
    if template is not None and (place != "header" or env is not None):
        raise Misuse("--template is of a field without a placeholder")
    if env is not None:
        named = {} if place == "basic" else {"name": query or header or "authorization"}
        return {"kind": "placeholder", "env": env, "in": place, **named}
    if place == "basic":
        return {"kind": "basic", "username": basic}
    if place == "query":
        return {"kind": "query", "name": query}
    return {"kind": "header", **_some({"name": header, "template": template})}


def _rate(text: str) -> dict[str, Any]:
    count, separator, seconds = text.partition("/")
    if not separator or not count.isdigit() or not seconds.isdigit():
        raise Misuse(f"--rate takes COUNT/SECONDS such as 100/60, not {text!r}")
    return {"count": int(count), "seconds": int(seconds)}


def _where(one: GrantInfo) -> str:
    where = one.grant.get("where", {})
    port = where.get("port", 443)
    return str(where.get("host", "")) + ("" if port == 443 else f":{port}")


def _some(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value}
