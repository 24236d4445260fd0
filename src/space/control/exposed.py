"""Which ports of a sandbox strangers may reach, and with what. Pure.

A sandbox that our own API made shows nothing until a port of it is exposed, and then to those who have its traffic token, unless it was
exposed to everybody. One that was made through the E2B face shows every port, as that API has it, unless it was told otherwise.
"""

from __future__ import annotations

from typing import Literal

from space.control.e2b.ids import ENVD_PORT
from space.control.e2b.store import Extras

Visible = Literal["public", "private", "hidden"]
MOST = 64  # exposed ports of one sandbox


def visible(extras: Extras, port: int) -> Visible:
    """To whom a port is visible."""
    if port == ENVD_PORT:
        return "hidden"  # the sandbox's own API has this number, and is control's
    public = extras.exposed.get(str(port))
    if public is None:
        if not extras.made:
            return "hidden"
        public = extras.public
    return "public" if public else "private"


def with_port(extras: Extras, port: int, *, public: bool) -> Extras:
    """The same with that port exposed."""
    return extras.changed(exposed={**extras.exposed, str(port): public})


def without_port(extras: Extras, port: int) -> Extras:
    """The same without."""
    return extras.changed(exposed={key: public for key, public in extras.exposed.items() if key != str(port)})
