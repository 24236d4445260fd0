"""A guest that tries one attempt after another, and what is held against each: oracles, records, counters, controls."""

from __future__ import annotations

import io
import json
import queue
import secrets
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import space
from space.model.egresslog import EgressRecord
from space.model.errors import SpaceError
from space_evaluate import catalogue
from space_evaluate.catalogue import Attempt
from space_evaluate.ground import Place, line, settled
from space_evaluate.outcome import Outcome
from space_evaluate.technique import Policy

HOME = "/root/evaluate"
ENDED = "host:sandbox-ended"
SILENT = "the guest did not answer"
_GRACE = 20.0  # seconds beyond an attempt's own, in which a guest must say that it is over
_PROOF = 4.0  # in which what stopped it must be written down


@dataclass(slots=True)
class Heard:
    """What the guest said of one attempt. end: None while it has not said it."""

    did: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    loot: bytearray = field(default_factory=bytearray)
    end: str | None = None

    def take(self, said: dict[str, Any]) -> bool:
        """A line of the guest's; whether it is over. It comes from who attacks: anything but the expected is a fault of the attempt."""
        self.did += [str(said["did"])[:400]] if "did" in said and len(self.did) < 40 else []
        self.refused += [str(said["refused"])[:200]] if "refused" in said else []
        if "got" in said and len(self.loot) < 1 << 22:
            self.loot += bytes.fromhex(str(said["got"])) + b"\n"
        self.end = str(said["end"]) if "end" in said else self.end
        return self.end is not None


class Guest:
    """A sandbox with the battery in it, and the program that runs it."""

    def __init__(self, sandbox: space.Sandbox, place: Place) -> None:
        self.sandbox, self.place = sandbox, place
        self.policy: Policy | None = None
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.noise: list[str] = []
        self._number = 0
        self._process: space.Process | None = None

    def begin(self) -> None:
        """Bring the battery, and start its program."""
        self.sandbox.put_tar([_packed(catalogue.files())], HOME, user="root")
        words = ["python3", "-u", "-m", "space_evaluate.guestside"]
        self._process = self.sandbox.start(words, user="root", cwd=HOME, stdin=True)
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        if self._next(60) is None:
            raise RuntimeError(f"the guest's program did not start: {' '.join(self.noise)[-800:]}")

    def _listen(self, process: space.Process) -> None:
        held = b""
        try:
            for piece in process.output(0, 0):
                if not isinstance(piece, space.Output):
                    continue
                if piece.stream != "stdout":
                    self.noise.append(piece.data.decode(errors="replace"))
                    continue
                *whole, held = (held + piece.data).split(b"\n")
                for one in whole:
                    self._hear(one)
        except SpaceError as fault:
            self.noise.append(str(fault))
        self.lines.put(None)

    def _hear(self, one: bytes) -> None:
        try:
            said = json.loads(one)
        except ValueError:
            said = None
        if isinstance(said, dict):
            self.lines.put(said)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def hold_to(self, policy: Policy, document: Mapping[str, Any] | None = None) -> None:
        """That policy from now on. document: what it says instead of the usual, for a test that something is seen."""
        if policy != self.policy or document is not None:
            told = self.sandbox.set_policy(document or self.place.policy(policy))
            if told.status.state != "applied":
                raise RuntimeError(f"the policy is not applied: {told.status}")
            self.policy = policy

    def order(self, **what: Any) -> int:
        """Begin something; its number."""
        assert self._process is not None
        self._number += 1
        self._process.write_stdin(line({"n": self._number, "ground": self.place.as_json(), **what}))
        return self._number

    def hear(self, number: int, seconds: float) -> Heard:
        """All that it says of it."""
        heard, until = Heard(), time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            said = self._next(left)
            if said is None:  # its output has ended
                break
            if said.get("n") == number and heard.take(said):
                break
        return heard

    def ended(self) -> str:
        """Why the host says that it has failed; "" while it has not, after some seconds."""
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            info = self.sandbox.info()
            if info.phase == "failed":
                return info.reason or "without a reason"
            time.sleep(0.2)
        return ""

    def control(self) -> str:
        """Whether what must work does; "" if so, else why not."""
        number = self.order(policy=self.policy, token=token())
        heard = self.hear(number, 90)
        return SILENT if heard.end is None else heard.end


def token() -> str:
    """Letters that nobody else has, fit for a label."""
    return "t" + secrets.token_hex(8)


def _packed(texts: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@contextmanager
def guest(client: space.Client, place: Place, grants: Sequence[str] = ()) -> Iterator[Guest]:
    """A fresh sandbox, ready."""
    with space.Sandbox.create(client=client, ttl_seconds=3000, grants=grants) as sandbox:
        made = Guest(sandbox, place)
        made.begin()
        yield made


class Judge:
    """Holds one attempt against what is written down of it."""

    def __init__(self, one: Guest) -> None:
        self._guest = one
        self._after: str | None = None
        self._records()

    def _records(self) -> list[EgressRecord]:
        found = [record for record in self._guest.sandbox.egress_log(self._after) if isinstance(record, EgressRecord)]
        if found:
            self._after = found[-1].id
        return found

    def attempt(self, one: Attempt) -> Outcome:
        """Try it."""
        guest, told = self._guest, one.entry.technique
        place, began = guest.place, time.monotonic()
        guest.hold_to(one.policy)
        self._records()
        dropped, mark, marker = dict(guest.sandbox.egress().drops), place.mark(), token()
        with ExitStack() as stack:
            stack.enter_context(one.entry.outside(guest, one) if told.around else nullcontext())
            number = guest.order(
                module=one.entry.module,
                what=told.variants[one.variant],
                token=marker,
                goal=one.goal,
                policy=one.policy,
                seconds=told.seconds,
            )
            heard = guest.hear(number, told.seconds + _GRACE)
        if heard.end is None and told.dies and (reason := guest.ended()):
            heard.end = ""
            heard.refused.append(f"{ENDED} {reason}")
        by, seen = self._proof(told.stops(one.policy), dropped, heard)
        settled(place)
        reached = place.reached(mark, one.policy, marker, bytes(heard.loot))
        evidence = [
            *(f"did: {words}" for words in heard.did),
            *(f"told: {words}" for words in heard.refused),
            *seen,
            *(f"REACHED: {words}" for words in reached),
        ]
        faults = [
            *_faults(heard),
            *([] if by else [f"none of {', '.join(told.stops(one.policy))} was seen"]),
        ]
        word = "reached" if reached else "error" if faults else "stopped"
        evidence += [f"FAULT: {words}" for words in faults]
        if word != "stopped" and guest.noise:
            evidence.append("guest: " + "".join(guest.noise)[-600:])
        guest.noise.clear()
        return Outcome(one, word, by, tuple(evidence), True, time.monotonic() - began)  # type: ignore[arg-type]

    def _proof(self, wanted: tuple[str, ...], before: dict[str, int], heard: Heard) -> tuple[tuple[str, ...], list[str]]:
        """What of it was seen, and the words of it; waits a little for records to come."""
        until, lines = time.monotonic() + _PROOF, []
        found: set[str] = set()
        refused = {words if words.startswith(ENDED) else f"guest:{words}" for words in heard.refused}
        while True:
            for record in self._records():
                if record.denied:
                    found.add(record.reason)
                    lines.append(f"record: {record.kind} {record.reason} {record.name} {record.method} {record.path}".strip()[:200])
            after = before if any(words.startswith(ENDED) for words in refused) else dict(self._guest.sandbox.egress().drops)
            moved = {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)}
            by = tuple(sorted({name for name in {*found, *moved, *refused} for one in wanted if _is(one, name)}))
            if by or time.monotonic() > until:
                return by, [*lines[:12], *(f"packets: {count} {name}" for name, count in moved.items())]
            time.sleep(0.05)


def _is(wanted: str, name: str) -> bool:
    """Whether it is what is looked for: exactly, or a kind of it (`address_`, `guest:`)."""
    return name.startswith(wanted) if wanted.endswith(("_", ":")) or wanted == ENDED else name == wanted


def _faults(heard: Heard) -> list[str]:
    """Of the attempt itself: what was not tried was not stopped."""
    faults = [] if heard.did else ["the guest does not say that it tried"]
    if heard.end is None:
        return [*faults, "the guest fell silent"]
    return [*faults, *([f"the guest's side failed: {heard.end}"] if heard.end else [])]
