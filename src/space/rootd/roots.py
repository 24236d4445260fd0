"""A template's root: its certificate and key, from the artefact that only root reads to where this instance's broker takes them."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

from space.config.artefacts import CERTIFICATE, KEY, Store
from space.config.instance import Instance
from space.host import files
from space.model.errors import Conflict, NotFound


def provide(instance: Instance, template: str) -> None:
    """Write them, whole or not at all, over what was there. NotFound without the template, or when it is older than roots are."""
    store = Store(instance.artefacts, instance.templates)
    manifest = store.template_by_digest(template)
    if not manifest.root:
        fact = f"template {manifest.name!r} ({template}) has no root certificate: it is older than those"
        raise NotFound(fact, hint="`space setup` makes it anew; sandboxes of the old one have no egress")
    place = store.authority(manifest.root)
    data = b"".join([manifest.root.encode(), b"\n", *((place / name).read_bytes() for name in (CERTIFICATE, KEY))])
    directory = files.open_directory(instance.broker_roots)
    staged = f".{secrets.token_hex(8)}"
    try:
        # The directory is the broker's: nothing that it may have put there is followed, or written to.
        descriptor = files.open_beneath(directory, staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchown(descriptor, instance.broker_uid, instance.broker_uid)
        os.rename(staged, f"{template}.pem", src_dir_fd=directory, dst_dir_fd=directory)
    except IsADirectoryError:
        raise Conflict(f"{instance.broker_roots}/{template}.pem is a directory", hint="remove it") from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(staged, dir_fd=directory)
        os.close(directory)
