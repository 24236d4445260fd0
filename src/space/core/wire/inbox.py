"""What a stream has received and nobody took yet: in order, and small in memory whatever the peer sends.

Credit bounds the bytes, not the objects: two megabytes of one-byte frames would be two million objects. So small pieces that wait are
joined, lane by lane; only when very many pieces wait is the order between the lanes given up. Unread messages are counted.
"""

from __future__ import annotations

from collections import deque

from space.core.wire.events import Data, Message
from space.model.errors import ProtocolError

MAX_MESSAGES = 4096
_SMALL = 16 << 10  # a larger piece is worth an object of its own
_RUN = 64 << 10
_MANY = 256  # pieces that wait before lanes are joined beside each other


class _Run:
    """Small pieces of data, joined."""

    __slots__ = ("lanes", "size")

    def __init__(self, first: Data) -> None:
        self.lanes = {first.lane: bytearray(first.payload)}
        self.size = len(first.payload)

    def add(self, data: Data) -> None:
        self.lanes.setdefault(data.lane, bytearray()).extend(data.payload)
        self.size += len(data.payload)


class Inbox:
    """Bounded by credit and by `MAX_MESSAGES`."""

    def __init__(self) -> None:
        self._queue: deque[Data | Message | _Run] = deque()
        self._messages = 0

    @property
    def pieces(self) -> int:
        """How many objects wait."""
        return len(self._queue)

    def put(self, event: Data | Message) -> None:
        """It came. ProtocolError when too many messages are unread."""
        if isinstance(event, Message):
            if self._messages >= MAX_MESSAGES:
                raise ProtocolError(f"{MAX_MESSAGES} messages are unread on stream {event.stream}")
            self._messages += 1
        elif self._queue and len(event.payload) < _SMALL and self._joined(event):
            return
        self._queue.append(event)

    def _joined(self, data: Data) -> bool:
        last = self._queue[-1]
        many = len(self._queue) > _MANY
        if isinstance(last, Data):
            if len(last.payload) >= _SMALL or (last.lane != data.lane and not many):
                return False
            run = self._queue[-1] = _Run(last)
        elif isinstance(last, _Run):
            run = last
            if run.size + len(data.payload) > _RUN or (data.lane not in run.lanes and not many):
                return False
        else:
            return False
        run.add(data)
        return True

    def take(self, stream: int) -> Data | Message | None:
        """The next piece, or None."""
        if not self._queue:
            return None
        first = self._queue.popleft()
        if isinstance(first, Message):
            self._messages -= 1
            return first
        if isinstance(first, Data):
            return first
        lane = next(iter(first.lanes))
        payload = bytes(first.lanes.pop(lane))
        if first.lanes:
            first.size -= len(payload)
            self._queue.appendleft(first)
        return Data(stream, payload, lane)

    def clear(self) -> None:
        """Forget what waits."""
        self._queue.clear()
        self._messages = 0
