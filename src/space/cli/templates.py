"""`space template` and `space prune`: what sandboxes are made of."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.completion import SandboxArgument
from space.cli.context import emit, examples, note, of, print_facts, print_json, print_table, span, when
from space.cli.lazy import loaded

if TYPE_CHECKING:
    from space.sdk import Client

Reference = Annotated[str, typer.Argument(metavar="NAME[:TAG]", help="Which.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(no_args_is_help=True, help="Build, list and tag what sandboxes are made of.", rich_markup_mode=None)
    group.command("build", epilog=examples("space template build numbers.toml", "space template build numbers.toml --tag v2"))(build)
    group.command("layer", epilog=examples("sudo space template layer jq sqlite3", "sudo space template layer --recipe numbers.toml"))(
        layer
    )
    group.command("list", epilog=examples("space template list"))(list_templates)
    group.command("show", epilog=examples("space template show numbers:v2"))(show)
    group.command("tag", epilog=examples("space template tag numbers:v2 numbers:latest"))(tag)
    group.command("delete", epilog=examples("space template delete numbers:v1"))(delete)
    group.command("keep", epilog=examples("space template keep sb-... numbers:v3"))(keep)
    group.command("rebake", epilog=examples("space template rebake numbers"))(rebake)
    group.command("export", epilog=examples("space template export numbers:v2 numbers.space"))(export)
    group.command("import", epilog=examples("space template import numbers.space numbers:v2"))(import_)
    app.add_typer(group, name="template")
    app.command("prune", epilog=examples("space prune --dry-run", "space prune --keep 86400", "sudo space prune --host"))(prune)


def build(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file; what it copies lies beside it.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Instead of the recipe's.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="What leads to this build.")] = "latest",
) -> None:
    """Build a template from a recipe, with its log; steps that an earlier build did are not done again."""
    with of(context).client() as client, tempfile.TemporaryDirectory(prefix="space-downloads-") as place:
        for line in client.build_template(recipe, name=name, tag=tag, downloads=_fetched(client, recipe, Path(place))):
            print_json(line) if of(context).json else _tell(line)


def _fetched(client: Client, recipe: Path, place: Path) -> Path | None:
    from space.sdk.buildfiles import recipe_text

    listed = client.plan_template(recipe_text(recipe))["downloads"] if recipe.is_file() else []
    if not listed:
        return None
    note(f"fetching {len(listed)} downloads as this machine is set up to")
    loaded("space.setup.downloads", "fetch")(listed, place)
    return place


def _tell(line: Any) -> None:
    match line["kind"]:
        case "step":
            took = f" ({line['took_ms'] / 1000:.1f} s)" if line["state"] == "done" else ""
            print(f"[{line['step']}/{line['of']}] {line['title']}: {line['state']}{took}", flush=True)
        case "output":
            (sys.stderr if line["stream"] == "stderr" else sys.stdout).write(line["text"])
        case "gap":
            note(f"lines up to {line['n']} are kept no longer")
        case "end":
            print(line["digest"], flush=True)


def layer(
    context: typer.Context,
    packages: Annotated[
        list[str] | None, typer.Argument(metavar="[PACKAGE]...", help="Debian packages, beside the base template's.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(metavar="RECIPE", help="The list of a recipe's base.debian.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Take newer packages if there are any.")] = False,
) -> None:
    """Make the root disk that recipes with that base.debian stand on; as root, on the server's machine (minutes; once)."""
    names = [*(packages or []), *(loaded("space.setup.layer", "of_recipe")(recipe) if recipe else [])]
    made, fresh = loaded("space.setup.layer", "make")(names, Path(sys.executable), update=update)
    if of(context).json:
        print_json({"name": made, "made": fresh})
        return
    emit(made)
    note("recipes with this base.debian can be built" if fresh else "it was there")


def list_templates(context: typer.Context) -> None:
    """List what sandboxes can be made of."""
    with of(context).client() as client:
        found = client.templates()
    if of(context).json:
        print_json({"templates": found})
        return
    rows = [
        (each["name"], ",".join(each["tags"]) or "-", each["digest"][:12], str(each["disk_mib"]), "shipped" if each["shipped"] else "own")
        for each in found
    ]
    print_table(("NAME", "TAGS", "BUILD", "DISK MIB", "WHOSE"), rows)


def show(context: typer.Context, template: Reference) -> None:
    """Show all there is to know of a template."""
    with of(context).client() as client:
        found = client.template(template)
    print_json(found) if of(context).json else print_facts(
        {**found, "created_at": when(found["created_at"])} if found["created_at"] else found
    )


def tag(
    context: typer.Context,
    template: Annotated[str, typer.Argument(metavar="NAME[:TAG]|DIGEST", help="The build that is meant.")],
    to: Annotated[str, typer.Argument(metavar="NAME:TAG", help="What leads to it from now on.")],
) -> None:
    """Let a tag lead to a build."""
    with of(context).client() as client:
        is_digest = len(template) == 32 and all(letter in "0123456789abcdef" for letter in template)
        found = client.tag_template(to, template if is_digest else client.template(template)["digest"])
    print_json(found) if of(context).json else note(f"{to} is {found['digest'][:12]}")


def delete(
    context: typer.Context,
    template: Reference,
    force: Annotated[bool, typer.Option("--force", help="Also while sandboxes of it are there.")] = False,
) -> None:
    """Take a tag away, and with a build's last one its disk."""
    with of(context).client() as client:
        client.delete_template(template, force=force)
    if of(context).json:
        print_json({"deleted": template})


def keep(
    context: typer.Context,
    sandbox: SandboxArgument,
    template: Annotated[str, typer.Argument(metavar="NAME[:TAG]", help="What leads to it.")],
) -> None:
    """Make a template of a sandbox's disk of this instant; the sandbox goes on."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client).keep_as_template(template)
    print_json(found) if of(context).json else emit(f"{found['digest']}\n")


def rebake(context: typer.Context, template: Reference) -> None:
    """Make a template's disk boot with what the server's machine has now."""
    with of(context).client() as client:
        found = client.rebake_template(template)
    print_json(found) if of(context).json else emit(f"{found['digest']}\n")


def export(
    context: typer.Context,
    template: Reference,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; it is not there yet.")],
) -> None:
    """Write a template to one file, without the holes of its disk, for another machine or for later."""
    with of(context).client() as client:
        size = client.export_template(template, file)
    print_json({"file": str(file), "bytes": size}) if of(context).json else note(f"{file}: {size / (1 << 20):.1f} MiB")


def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What an export wrote.")],
    template: Annotated[str, typer.Argument(metavar="NAME[:TAG]", help="What leads to it.")],
) -> None:
    """Make a template of such a file; it boots with what the server's machine has."""
    with of(context).client() as client:
        found = client.import_template(file, template)
    print_json(found) if of(context).json else emit(f"{found['digest']}\n")


def prune(
    context: typer.Context,
    keep: Annotated[int, typer.Option(metavar="SECONDS", min=0, help="What builds used since then stays.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    host: Annotated[
        bool, typer.Option("--host", help="Instead what earlier set-ups made and nothing uses; as root, on the server's machine.")
    ] = False,
) -> None:
    """Drop what builds keep to be faster; never a template, a sandbox or anything of theirs (with an admin's key)."""
    if host:
        _prune_host(context, keep=keep, dry_run=dry_run)
        return
    with of(context).client() as client:
        done = client.prune(keep_seconds=keep, dry_run=dry_run)
    if of(context).json:
        print_json(done)
        return
    words = "would go" if dry_run else "went"
    since = f" (unused for {span(keep)})" if keep else ""
    note(f"{len(done['steps'])} kept steps {words}, {done['freed_bytes'] >> 20} MiB at most{since}")


def _prune_host(context: typer.Context, *, keep: int, dry_run: bool) -> None:
    if keep:
        raise typer.BadParameter("goes with what builds keep, not with --host", param_hint="--keep")
    done = loaded("space.serve.retire", "prune")(dry_run=dry_run)
    if of(context).json:
        print_json({"artefacts": done.artefacts, "freed_bytes": done.freed_bytes})
        return
    for one in done.artefacts:
        emit(one)
    note(f"{len(done.artefacts)} artefacts {'would go' if dry_run else 'went'}, {done.freed_bytes >> 20} MiB")
