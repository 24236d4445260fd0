"""What went wrong, as a code and a sentence for the node."""

from __future__ import annotations

import errno
import traceback

from space.model.errors import Internal, NoCapacity, SpaceError
from space.rootd.log import log

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)


def fault(error: Exception) -> SpaceError:
    """An error of the tree for any exception; what nobody expected is logged whole."""
    if isinstance(error, SpaceError):
        return error
    if isinstance(error, OSError) and error.errno in _FULL:
        return NoCapacity(f"the machine is full: {error.strerror}")
    log(traceback.format_exc(), level="error")
    return Internal("rootd failed; its log says why")
