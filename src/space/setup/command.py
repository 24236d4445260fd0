"""Set-up's one door to other programs: a list of arguments, no shell, stdin closed or given, output kept for the failure.

Unlike the services' door the environment is inherited, on purpose: proxies, CA bundles and the settings of pip, cargo and
apt are how this machine reaches its mirrors. Only what would change how a Python child finds its modules is taken out.
Children stay in our process group, so that Ctrl-C reaches mmdebstrap too and it takes its mounts down.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from space.setup.faults import SetupFailed

_TAIL = 15
_PRIVATE = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONSTARTUP", "VIRTUAL_ENV")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The machine's environment for a child, in English."""
    kept = {name: value for name, value in os.environ.items() if name not in _PRIVATE}
    path = kept.get("PATH", "")
    missing = [part for part in ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin") if part not in path.split(":")]
    return kept | {"PATH": ":".join([path, *missing]).lstrip(":"), "LC_ALL": "C.UTF-8"} | dict(extra or {})


def run(
    argv: Sequence[str | Path],
    *,
    what: str,
    hint: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    stdin: bytes | None = None,
    timeout: float = 1800,
) -> bytes:
    """Run a program to its end and return its standard output; SetupFailed says `what` failed, with the tail of the output.

    With `user` it runs under that uid, the gid of the same number and no other group. `timeout` in seconds.
    """
    words = [str(word) for word in argv]
    given: dict[str, object] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    if user is not None:
        given |= {"user": user, "group": user, "extra_groups": []}
    try:
        done = subprocess.run(words, cwd=cwd, env=environment(env), capture_output=True, timeout=timeout, check=False, **given)  # type: ignore[call-overload]
    except FileNotFoundError as error:
        raise SetupFailed(f"cannot {what}: there is no {words[0]!r} ({error.strerror})", hint=hint or "run `make setup`") from error
    except subprocess.TimeoutExpired as error:
        raise SetupFailed(f"cannot {what}: {words[0]} did not end within {timeout:.0f} s", hint=hint) from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-_TAIL:]
        quoted = "\n".join(f"    {line}" for line in lines)
        raise SetupFailed(f"cannot {what}: {' '.join(words)} ended with status {done.returncode}\n{quoted}\n", hint=hint)
    return bytes(done.stdout)
