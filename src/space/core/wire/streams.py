"""The streams of a session: the state table of one, its credit in both directions, and the limits of all.

    OPEN --we CLOSE--> LOCAL_CLOSED --peer's CLOSE--> ended
    OPEN --peer's CLOSE--> REMOTE_CLOSED --we CLOSE--> ended            any --RESET, either side's--> ended

An ended stream leaves nothing behind: numbers only rise, so a number at or below the last that is not here has ended.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from space.core.wire.frames import CLOSE, CREDIT, DATA, MSG, NAMES, RESET
from space.model.errors import ProtocolError

CREDIT_PAYLOAD = struct.Struct("<I")
OPEN, LOCAL_CLOSED, REMOTE_CLOSED, ENDED = range(4)
STATES = ("open", "closed by us", "closed by the peer", "ended")

# (state, type) -> next state. A missing entry is an error: the peer's on receiving, ours on sending.
RECEIVES: dict[tuple[int, int], int] = {
    (OPEN, DATA): OPEN,
    (OPEN, MSG): OPEN,
    (OPEN, CREDIT): OPEN,
    (OPEN, CLOSE): REMOTE_CLOSED,
    (OPEN, RESET): ENDED,
    (LOCAL_CLOSED, DATA): LOCAL_CLOSED,
    (LOCAL_CLOSED, MSG): LOCAL_CLOSED,
    (LOCAL_CLOSED, CREDIT): LOCAL_CLOSED,
    (LOCAL_CLOSED, CLOSE): ENDED,
    (LOCAL_CLOSED, RESET): ENDED,
    (REMOTE_CLOSED, CREDIT): REMOTE_CLOSED,
    (REMOTE_CLOSED, RESET): ENDED,
}
SENDS: dict[tuple[int, int], int] = {
    (OPEN, DATA): OPEN,
    (OPEN, MSG): OPEN,
    (OPEN, CREDIT): OPEN,
    (OPEN, CLOSE): LOCAL_CLOSED,
    (OPEN, RESET): ENDED,
    (LOCAL_CLOSED, CREDIT): LOCAL_CLOSED,
    (LOCAL_CLOSED, RESET): ENDED,
    (REMOTE_CLOSED, DATA): REMOTE_CLOSED,
    (REMOTE_CLOSED, MSG): REMOTE_CLOSED,
    (REMOTE_CLOSED, CLOSE): ENDED,
    (REMOTE_CLOSED, RESET): ENDED,
}


@dataclass(slots=True)
class Flow:
    """One live stream. may_send, may_receive: credit left in bytes. owed: taken by the consumer and not yet returned."""

    pipe: int
    window: int
    may_send: int
    may_receive: int
    owed: int = 0
    state: int = OPEN

    def received(self, number: int, kind: int, size: int) -> int:
        """The state after the peer's frame; ProtocolError when it may not be."""
        state = RECEIVES.get((self.state, kind))
        if state is None:
            raise ProtocolError(f"{NAMES[kind]} on stream {number}, which is {STATES[self.state]}")
        if size:
            if size > self.may_receive:
                raise ProtocolError(f"{NAMES[kind]} of {size} bytes overruns stream {number}'s credit of {self.may_receive}")
            self.may_receive -= size
        self.state = state
        return state

    def credited(self, number: int, more: int) -> None:
        """The peer returned credit."""
        if not more:
            raise ProtocolError(f"CREDIT of 0 bytes on stream {number}")
        if self.may_send + more > self.window:
            raise ProtocolError(f"CREDIT of {more} bytes lifts stream {number} from {self.may_send} above its window of {self.window}")
        self.may_send += more

    def took(self, size: int) -> int:
        """The consumer took bytes: the credit to return now, 0 while it is less than a quarter of the window or no more can come."""
        self.owed += size
        if self.owed * 4 < self.window or (self.state, CREDIT) not in SENDS:
            return 0
        more, self.owed = self.owed, 0
        self.may_receive += more
        return more
