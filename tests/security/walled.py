"""A guest that is held to a policy, and the oracles outside it: what servers of the town saw, what was recorded, what was counted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import space
from space.model.egresslog import EgressRecord
from space.testing.egresstown import Town

T = TypeVar("T")
SCRIPTS = Path(__file__).with_name("guest")
_THERE = "/root/attack/tests/security/guest"
PATIENCE = timedelta(seconds=15)  # after which a client that was refused must have given up
GET = "curl --silent --show-error --max-time 20 --output /tmp/body --write-out '%{http_code}'"


class Walled:
    """sandbox: the guest. place: the town."""

    def __init__(self, sandbox: space.Sandbox, place: Town) -> None:
        self.scripts: set[str] = set()
        self.sandbox, self.place = sandbox, place
        self._after = max((record.id for record in self._all(None)), default=None, key=_order)

    def allow(self, *rules: Mapping[str, Any], **more: Any) -> None:
        """Exactly this from now on."""
        told = self.sandbox.set_policy({"version": 1, "rule": list(rules), **more})
        assert told.status.state == "applied", told.status

    def root(self, script: str, asked: Any = None, *, seconds: float = 120) -> Any:
        """Run one of the scripts beside this as root; what it asks for goes in as JSON, what it found comes out as JSON."""
        self._bring(script)
        words = ["python3", "-m", f"tests.security.guest.{script}"]
        result = self.sandbox.run(words, user="root", stdin=json.dumps(asked).encode(), timeout=seconds, cwd="/root/attack")
        assert result.ok, (result.text[-3000:], result.error_text[-3000:])
        return json.loads(result.text.splitlines()[-1])

    def start(self, script: str, *words: str) -> space.Process:
        """The same in the background, with words for it."""
        self._bring(script)
        return self.sandbox.start(["python3", "-u", "-m", f"tests.security.guest.{script}", *words], user="root", cwd="/root/attack")

    @staticmethod
    def output(process: space.Process) -> bytes:
        """What it has said so far."""
        return b"".join(one.data for one in process.output(0, 0, follow=False) if isinstance(one, space.Output))

    def _bring(self, script: str) -> None:
        for name in {"common", script} - self.scripts:
            self.sandbox.files.write(f"{_THERE}/{name}.py", (SCRIPTS / f"{name}.py").read_text(), parents=True, user="root")
            self.scripts.add(name)

    def sh(self, script: str, *, user: str = "root", seconds: float = 120) -> tuple[int, str]:
        """A shell's exit status and words, both streams."""
        result = self.sandbox.run(["sh", "-c", f"exec 2>&1; {script}"], user=user, timeout=seconds)
        return (124 if result.timed_out else result.exit_code if result.exit_code is not None else -1), result.text

    def gives_up(self, script: str, words: str, *, seconds: float = 120) -> None:
        """A shell fails with these words, and stopped trying soon: by the records, so that a slow machine is no reason."""
        began = self.mark()
        status, said = self.sh(script, seconds=seconds)
        assert words in said, said
        assert status != 124, said
        tries = [datetime.fromisoformat(one.at) for one in self.reasons("name_not_allowed", "path_not_allowed", after=began, every=False)]
        assert tries[-1] - tries[0] < PATIENCE, (len(tries), said)

    def get(self, url: str, *options: str) -> tuple[str, str]:
        """What curl was answered, or its words; and the body."""
        _, words = self.sh(f"rm -f /tmp/body; {GET} {' '.join(options)} '{url}'; echo; cat /tmp/body 2>/dev/null")
        first, _, body = words.partition("\n")
        return first, body

    def serves(self, name: str) -> bool:
        """Whether a legitimate request works."""
        return self.get(f"https://{name}/still")[0] == "200"

    def mark(self) -> str | None:
        """A place in the records, behind all that are there."""
        return max((record.id for record in self.records()), default=self._after, key=_order)

    def records(self, after: str | None = None) -> list[EgressRecord]:
        """Of this test, or from a mark on; so far."""
        return self._all(after or self._after)

    def recorded(self, *wanted: Callable[[EgressRecord], bool], seconds: float = 10) -> list[EgressRecord]:
        """The records once there is one for each of these."""
        return eventually(lambda: found if all(any(map(one, found := self.records())) for one in wanted) else None, seconds)

    def reasons(self, *wanted: str, after: str | None = None, every: bool = True) -> list[EgressRecord]:
        """The records of these reasons, once there is one of each; every=False: of any."""

        def look() -> list[EgressRecord] | None:
            found = [one for one in self.records(after) if one.reason in wanted]
            return found if len({one.reason for one in found}) >= (len(set(wanted)) if every else 1) else None

        return eventually(look)

    def dropped(self) -> dict[str, int]:
        """Packets by kind, so far."""
        return dict(self.sandbox.egress().drops)

    def _all(self, after: str | None) -> list[EgressRecord]:
        return [record for record in self.sandbox.egress_log(after) if isinstance(record, EgressRecord)]


def eventually(look: Callable[[], T | None], seconds: float = 10) -> T:
    """What it finds, once it does."""
    until = time.monotonic() + seconds
    while (found := look()) is None:
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)
    return found


def moved(before: Mapping[str, int], after: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """By how much these counters went up."""
    return {name: after.get(name, 0) - before.get(name, 0) for name in names}


def _order(place: str) -> tuple[int, ...]:
    return tuple(map(int, place.split(".")))


def told(record: EgressRecord) -> str:
    """In a line."""
    words = (record.id, record.kind, record.name, record.port or "", record.method, record.path, record.status or "", record.rule)
    return " ".join(map(str, (*words, record.reason, record.address or record.upstream, record.count if record.kind == "repeated" else "")))
