"""`space backup` and `space restore`: the server's state in one file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from space.cli.context import examples, of, print_json
from space.cli.lazy import loaded
from space.model.errors import InvalidArgument


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("backup", epilog=examples("space backup /root/space.backup"))(backup)
    app.command("restore", epilog=examples("space restore /root/space.backup"))(restore)


def backup(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; replaced if it exists.")],
    with_keyring: Annotated[bool, typer.Option("--with-keyring", help="The key of the broker's store as well: keep FILE like it.")] = False,
) -> None:
    """Write the server's database, admin key, the broker's sealed store and the egress records into FILE (root, mode 0600).

    While it runs or is stopped. Sandboxes' disks are not part of it, and neither, unless asked for, is the key of the broker's store:
    keep that apart, without it the store cannot be restored. The file is as secret as the admin key in it.
    """
    name = _instance(context)
    try:
        instance = loaded("space.config.instance", "load")(name)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if instance is None:
        raise InvalidArgument(f"there is no instance '{name}' on this host")
    _tell(context, "saved", Path(file), loaded("space.serve.backup", "backup")(instance, Path(file), with_keyring=with_keyring))


def restore(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `space backup` wrote.")],
    keyring: Annotated[Path | None, typer.Option("--keyring", metavar="FILE", help="The key of the broker's store, kept apart.")] = None,
    without_broker: Annotated[
        bool, typer.Option("--without-broker", help="Leave the broker's store and the egress records as they are.")
    ] = False,
) -> None:
    """Put back what `space backup` saved, as root, while the server is stopped; all of it or nothing.

    It is refused when no key opens the broker's store: that of --keyring, of the backup, or the instance's own. Records of egress that
    are there are put aside, never removed.

    Keys are those of the backup again. Sandboxes made since are deleted by the next `space serve`.
    """
    try:
        wanted = loaded("space.serve.restore", "Wanted")(keyring, not without_broker)
        manifest = loaded("space.serve.restore", "restore")(_instance(context), Path(file), wanted)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    _tell(context, "restored", Path(file), manifest)


def _instance(context: typer.Context) -> str:
    return of(context).instance or os.environ.get("SPACE_INSTANCE") or "default"


def _tell(context: typer.Context, what: str, file: Path, manifest: Any) -> None:
    total = sum(part.bytes for part in manifest.files)
    if of(context).json:
        facts = {"file": str(file), "instance": manifest.instance, "created_at": manifest.created_at, "schema": manifest.schema}
        print_json(facts | {"bytes": total})
        return
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.created_at))
    print(f"{what}: instance {manifest.instance} of {made}, schema {manifest.schema}, {total} bytes")
