"""The mock server's trees: what goes into a sandbox and comes out of it as one tar stream."""

from __future__ import annotations

import io
import posixpath
import tarfile
import zlib
from collections.abc import Mapping
from typing import Any

from space.model.errors import NotFound


def put_tree(files: dict[str, bytes], members: dict[str, tarfile.TarInfo], place: str, body: bytes) -> dict[str, Any]:
    """Unpack; the summary that is answered."""
    entries = 0
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        for member in archive:
            entries += 1
            path = posixpath.normpath(posixpath.join(place, member.name))
            members[path] = member
            if member.isreg():
                file = archive.extractfile(member)
                assert file is not None
                files[path] = file.read()
    return {"entries": entries, "bytes": len(body), "crc32": zlib.crc32(body)}


def get_tree(files: Mapping[str, bytes], members: Mapping[str, tarfile.TarInfo], place: str) -> bytes:
    """The tar stream of a path."""
    known: dict[str, tarfile.TarInfo | None] = {**dict.fromkeys(files), **members}
    if place not in known and not any(path.startswith(f"{place}/") for path in known):
        raise NotFound(f"there is no {place} in the sandbox")
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in known if path == place or path.startswith(f"{place}/")):
            info = known[path] or tarfile.TarInfo()
            is_single = path == place and path in files
            info.name = posixpath.basename(path) if is_single else "./" + posixpath.relpath(path, place)
            info.pax_headers = {}
            data = files.get(path)
            info.size = len(data) if data is not None else 0
            archive.addfile(info, io.BytesIO(data) if data is not None else None)
    return output.getvalue()
