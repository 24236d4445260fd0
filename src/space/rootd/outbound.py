"""The packet filter of the dialer's uid, from the settings that the dialer goes by and the machine's resolv.conf, which are root's both.
Nobody asks rootd for it, so nobody can ask for a wider one.
"""

from __future__ import annotations

from functools import partial

from space.config import egress
from space.config.instance import Instance
from space.config.settings import load_effective
from space.core.plan import outbound
from space.host import nftables, process
from space.host.filewatch import FileWatch
from space.model.errors import Internal
from space.rootd.log import log


class Filter:
    """Loaded, and read back. Its descriptor is readable when the machine's resolvers may have changed."""

    def __init__(self, instance: Instance) -> None:
        settings = load_effective(instance)
        self._wanted = partial(egress.outbound, instance.dialer_uid, settings.egress_resolvers, settings.egress_reachable)
        self._watch = FileWatch(egress.RESOLV_CONF)  # before it is read
        self._loaded = _load(self._wanted())

    def fileno(self) -> int:
        return self._watch.fileno()

    def follow(self) -> None:
        """Load what holds now, if that is something else. Where that fails the former filter stays."""
        try:
            if self._watch.changed() and (wanted := self._wanted()) != self._loaded:
                self._loaded = _load(wanted)
                log(f"the dialer may ask {len(wanted.resolvers)} resolvers: {', '.join(map(str, dict(wanted.resolvers)))}")
        except (process.ProcessFailed, Internal, OSError) as error:
            log(f"the dialer's packet filter is not the one of these resolvers: {error}", level="error")


def _load(wanted: outbound.Outbound) -> outbound.Outbound:
    nftables.load(outbound.text(wanted))
    if outbound.canonical(nftables.table(wanted.table)) != outbound.expected(wanted):
        raise Internal(f"the packet filter {wanted.table} reads back otherwise than it was written")
    return wanted
