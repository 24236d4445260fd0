"""Which template stands for a container image that a build begins from: no registry is asked here.

A few images are Debian 12 with Python 3.11 as the base template is; the operator's file (setting `e2b_images`) says more:

    {"node:20": "node", "company/agents:1": "agents:1"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from space.core.template.recipe import reference
from space.model.errors import InvalidArgument

_BASE: Final = "base"
SHIPPED: Final[Mapping[str, str]] = {
    "e2bdev/base": _BASE,
    "e2bdev/code-interpreter": "code-interpreter-v1",
    **dict.fromkeys(("debian", "debian:12", "debian:bookworm", "debian:stable", "debian:bookworm-slim", "debian:12-slim"), _BASE),
    **dict.fromkeys(("python:3.11", "python:3.11-slim", "python:3.11-bookworm", "python:3.11-slim-bookworm"), _BASE),
}


def load(path: str | None) -> dict[str, str]:
    """The shipped ones under the operator's. InvalidArgument names the mistake."""
    if path is None:
        return dict(SHIPPED)
    try:
        said = json.loads(Path(path).read_text())
        if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
            raise ValueError("it is no object of texts")
        for named in said.values():
            reference(named)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"setting e2b_images: {path}: {error}", hint='such as {"node:20": "node"}') from None
    return {**SHIPPED, **said}


def template(images: Mapping[str, str], image: str) -> str | None:
    """The template that stands for it; `:latest` may be left out, and so may the registry of everybody's images."""
    plain = image.removeprefix("docker.io/").removeprefix("library/")
    for name in (image, plain, plain.removesuffix(":latest"), f"{plain}:latest"):
        if (found := images.get(name)) is not None:
            return found
    return None
