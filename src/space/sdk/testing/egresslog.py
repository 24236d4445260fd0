"""The mock server's records of egress: a list that a test writes.

server.egress.log.add("sb-...", kind="request", name="www.example.com", status=200)
server.egress.log.forget(2)                        # the oldest two are kept no longer
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from space.model.errors import InvalidArgument
from space.sdk.testing.body import Waiting
from space.sdk.testing.sandbox import query, streamed

HEARTBEAT_SECONDS = 5.0


class EgressLogs:
    """One chain of them: the gateway's, or the broker's of credentials."""

    def __init__(self, chain: str = "gateway") -> None:
        self._chain = chain
        self.changed = threading.Condition()
        self.kept: list[dict[str, Any]] = []
        self._count = 0
        self._removed = 0

    def add(self, sandbox: str, *, kind: str = "request", **fields: Any) -> str:
        """One more; its id."""
        with self.changed:
            self._count += 1
            at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            place = {"kind": kind, "id": self._place(self._count), "chain": self._chain, "n": self._count}
            self.kept.append({**place, "at": at, "sandbox": sandbox, "generation": 1, "tenant": "mock", **fields})
            self.changed.notify_all()
            return self._place(self._count)

    def _place(self, number: int) -> str:
        return f"{number}.0" if self._chain == "gateway" else str(number)

    def forget(self, up_to: int) -> None:
        """Keep only what came after this one."""
        with self.changed:
            self._removed = max(self._removed, up_to)
            self.kept = [record for record in self.kept if record["n"] > up_to]

    def answer(self, request: httpx.Request, sandbox: str | None) -> httpx.Response:
        """GET .../egress/log; of all sandboxes without one."""
        params = query(request)
        parts = params.get("after", self._place(0)).split(".")
        if len(parts) != len(self._place(0).split(".")) or not all(part.isdigit() for part in parts):
            raise InvalidArgument(f"after: {params['after']!r} is no place")
        return streamed(Waiting(lambda closed: self._lines(params, sandbox, closed), self.changed), "application/x-ndjson")

    def _lines(self, params: Mapping[str, str], sandbox: str | None, closed: Callable[[], bool]) -> Iterator[bytes]:
        follow, left = params.get("follow") == "1", int(params.get("limit", 1000))
        with self.changed:
            after = int(params["after"].partition(".")[0]) if "after" in params else self._count if follow else 0
            removed = self._removed
        if "after" in params and after < removed:
            yield _line({"kind": "gap", "id": self._place(removed), "chain": self._chain, "removed": removed})
        if follow:
            yield _line({"kind": "heartbeat", "id": self._place(max(after, removed))})
        while not closed():
            with self.changed:
                found = [record for record in self.kept if record["n"] > after]
                if not found and follow and not self._come(after, closed):
                    found = [{"kind": "heartbeat", "id": self._place(self._count), "n": self._count}]
            wanted = [one for one in found if one["kind"] == "heartbeat" or _asked(one, params, sandbox)]
            after = found[-1]["n"] if found else after
            yield from map(_line, wanted if follow else wanted[:left])
            if not follow:
                return

    def _come(self, after: int, closed: Callable[[], bool]) -> bool:
        return bool(self.changed.wait_for(lambda: closed() or self._count > after, HEARTBEAT_SECONDS))


def _asked(record: Mapping[str, Any], params: Mapping[str, str], sandbox: str | None) -> bool:
    return (
        sandbox in (None, record["sandbox"])
        and (params.get("denied") != "1" or bool(record.get("reason")))
        and ("kind" not in params or record["kind"] in params["kind"].split(","))
        and record["at"] >= params.get("since", "")
        and all(record.get(name) == params[name] for name in ("secret", "grant") if name in params)
    )


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
