"""A mount namespace whose changes stay in it, from within a chroot too, where `unshare --mount` refuses.

    python -I -m space.testing.mountns PROGRAM ARGUMENT...

`unshare` makes `/` private, which must be a mount; a chroot's root need not be one. Entering the namespace that we are in puts us at
its real root, where every mount is made private; then we go back to the root that we had.
"""

from __future__ import annotations

import os
import sys

from space.host import syscalls


def enter() -> None:
    """Move this process (and its children to come) into a private mount namespace; its root and directory stay."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    # opened now: what was opened before lies in the namespace that we have left
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(own, syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    os.fchdir(root)
    os.chroot(".")
    os.fchdir(here)
    for descriptor in (root, here, own):
        os.close(descriptor)


if __name__ == "__main__":
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])
