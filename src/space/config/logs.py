"""How a service logs: one line an event on standard error, as text or as one JSON object (setting `log_format`).

Objects have time (RFC 3339, UTC), level, service, logger, message; request_id and sandbox where they are known; exception with a
traceback. Both are context variables, so that a line deep inside a request carries them. Keys are struck out, wherever they come from.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextvars import ContextVar

from space.host import logfile

request_id: ContextVar[str] = ContextVar("request_id", default="-")
sandbox: ContextVar[str] = ContextVar("sandbox", default="-")

FORMATS = ("text", "json")
_LONGEST = 16_384  # characters of a message; a traceback's end says more than its beginning
_KEY = re.compile(r"space_([a-z2-7]{12})_[0-9a-f]{16,}")


class Handler(logging.Handler):
    """Writes to a descriptor that bounds itself."""

    def __init__(self, service: str, form: str, descriptor: int = 2, limit: int = logfile.LIMIT) -> None:
        super().__init__()
        self._descriptor, self._limit = descriptor, limit
        self.setFormatter(_Json(service) if form == "json" else _Text(service))

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - wrong arguments of a log call must not end what it tells of
            self.handleError(record)
            return
        logfile.write_line(self._descriptor, line.encode("utf-8", "backslashreplace") + b"\n", self._limit)


def configure(service: str, form: str = "text") -> None:
    """Send everything from INFO on to standard error."""
    logging.basicConfig(handlers=[Handler(service, form)], level=logging.INFO)


def struck(text: str) -> str:
    """The text without the secrets of API keys; a key's id stays."""
    return _KEY.sub(r"space_\1_***", text) if "space_" in text else text


class _Text(logging.Formatter):
    def __init__(self, service: str) -> None:
        requests = " %(request_id)s" if service in ("control", "node") else ""
        super().__init__(f"%(asctime)s %(levelname)s %(name)s{requests} %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        if not hasattr(record, "request_id"):
            record.request_id = request_id.get()
        return struck(super().format(record))


class _Json(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, str] = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": _bounded(struck(record.getMessage())),
        }
        for name, known in (("request_id", request_id), ("sandbox", sandbox)):
            value = str(getattr(record, name, known.get()))
            if value != "-":
                fields[name] = value
        if record.exc_info:
            fields["exception"] = _bounded(struck(self.formatException(record.exc_info)), end=True)
        return json.dumps(fields)


def stamp(seconds: float) -> str:
    """UNIX seconds as RFC 3339 in UTC, to the millisecond."""
    whole, part = divmod(int(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{part:03d}Z"


def _bounded(text: str, *, end: bool = False) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"[...]{text[-_LONGEST:]}" if end else f"{text[:_LONGEST]}[...]"
