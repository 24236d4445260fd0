"""`space setup --systemd`: one template unit, `space@.service`, whose instances are ours: `space@default` serves instance `default`.

Nothing is enabled or started unless asked. KillMode=process: systemd ends serve alone, which ends its services (or leaves them and every
sandbox to the next serve, when it was killed). No option may give serve a mount namespace of its own (ProtectSystem=, PrivateTmp=,
ProtectHome= and their like): sandboxes' network namespaces are mounts below /run/space that must outlive serve, and the next one must
see them. So the unit is hardened by capabilities, system calls and address families.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from space.config.instance import DATA_ROOT, SETTINGS_ROOT
from space.host.files import need_replaceable
from space.model.ids import instance_name
from space.setup import command, deps
from space.setup.faults import SetupFailed

UNIT = "space@.service"
DIRECTORY = Path("etc/systemd/system")
MARK = "# Written by `space setup --systemd`, removed by `space clean`. Changes of yours belong into `systemctl edit space@.service`."
_WANTED_BY = "multi-user.target"
_RUNNING = Path("/run/systemd/system")

# What rootd and the jail use, the sockets below port 1024, and serve's look at descriptors of services that it adopts.
CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
    "CAP_SYS_RESOURCE",
)  # fmt: skip
FAMILIES = ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK")

Systemctl = Callable[..., bytes]


def unit(program: Path) -> str:
    """The text of the unit."""
    return f"""{MARK}
[Unit]
Description=space: sandboxes of instance %i
Wants=network-online.target
After=network-online.target local-fs.target time-sync.target
RequiresMountsFor={DATA_ROOT} {deps.OPT}
AssertFileIsExecutable={program}
StartLimitIntervalSec=120
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
EnvironmentFile=-{SETTINGS_ROOT}/%i.env
ExecStart={program} --instance %i serve
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=2
KillMode=process
TimeoutStartSec=180
TimeoutStopSec=120
LimitNOFILE=65536
LimitCORE=0
LimitMEMLOCK=infinity
TasksMax=infinity
UMask=0022

NoNewPrivileges=yes
CapabilityBoundingSet={" ".join(CAPABILITIES)}
RestrictAddressFamilies={" ".join(FAMILIES)}
SystemCallArchitectures=native
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
KeyringMode=private

[Install]
WantedBy={_WANTED_BY}
DefaultInstance=default
"""


def systemctl(*arguments: str) -> bytes:
    """Call it."""
    return command.run(["systemctl", *arguments], what=f"systemctl {' '.join(arguments)}", timeout=300)


def install(program: Path, *, enable: str | None = None, root: Path = Path("/"), call: Systemctl = systemctl) -> list[str]:
    """Write the unit, and enable it for an instance if asked; what was done, in words. SetupFailed without a systemctl to enable with."""
    path, text, done = root / DIRECTORY / UNIT, unit(program), []
    try:
        need_replaceable(path)
    except OSError as error:
        raise SetupFailed(f"cannot write {path}: {error.strerror}", hint="move it away") from None
    if path.exists() and not _is_ours(path):
        raise SetupFailed(f"{path} is there and is not ours", hint="move it away")
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{UNIT}.{os.getpid()}")
        staged.write_text(text)
        staged.chmod(0o644)
        staged.rename(path)
        done.append(f"wrote {path}")
        _reload(root, call)
    if enable is None:
        return done
    name = f"space@{instance_name(enable)}.service"
    if shutil.which("systemctl") is None:
        raise SetupFailed(f"cannot enable {name}: there is no systemctl", hint="the unit is written; enable it where systemd runs")
    call(*_where(root), "enable", "--quiet", name)
    return [*done, f"enabled {name} (systemctl start {name} starts it)"]


def remove(*, root: Path = Path("/"), call: Systemctl = systemctl) -> list[str]:
    """Stop and disable every instance, and take the unit away; what was done, in words. A unit of somebody else's stays."""
    path = root / DIRECTORY / UNIT
    if not path.exists() or not _is_ours(path):
        return []
    if _runs(root):
        call("stop", "space@*.service")  # before the file goes: what is killed later must not come back
    done = []
    for link in sorted((root / DIRECTORY).glob("*.wants/space@*.service")):
        if link.is_symlink():
            link.unlink()
            done.append(f"disabled {link.name}")
    path.unlink()
    _reload(root, call)
    return [*done, f"removed {path}"]


def forget(instance: str, *, root: Path = Path("/"), call: Systemctl = systemctl) -> list[str]:
    """Stop and disable one instance; what was done, in words."""
    name, done = f"space@{instance_name(instance)}.service", []
    if _runs(root) and (root / DIRECTORY / UNIT).exists():
        call("stop", name)
    for wants in sorted((root / DIRECTORY).glob("*.wants")):
        if (wants / name).is_symlink():  # wherever it leads
            (wants / name).unlink()
            done.append(f"disabled {name}")
    return done


def _is_ours(path: Path) -> bool:
    return path.read_text(errors="replace").startswith(MARK)


def _runs(root: Path) -> bool:
    """Whether a systemd runs for this root."""
    return root == Path("/") and _RUNNING.is_dir()


def _reload(root: Path, call: Systemctl) -> None:
    if _runs(root):
        call("daemon-reload")


def _where(root: Path) -> list[str]:
    return [] if root == Path("/") else [f"--root={root}"]
