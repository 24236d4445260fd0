"""How a container image begins, by what the program that unpacked it in the builder said: somebody else's word, bounded."""

from __future__ import annotations

import json

from space.core.template.model import Settings
from space.model.errors import BuildFailed


def settings_of_image(said: bytes) -> Settings:
    """The last line of it. BuildFailed when it is none."""
    try:
        raw = json.loads(said.strip().rpartition(b"\n")[2])
        words = {name: [str(word) for word in raw.get(name) or []] for name in ("Env", "Entrypoint", "Cmd")}
        env = dict(line.split("=", 1) for line in words["Env"] if "=" in line and not line.startswith("="))
        user, cwd = str(raw.get("User") or "root").partition(":")[0], str(raw.get("WorkingDir") or "/")
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise BuildFailed("the image's settings are not readable") from None
    start = tuple(words["Entrypoint"] + words["Cmd"])
    return Settings(env, user, cwd, start or None)
