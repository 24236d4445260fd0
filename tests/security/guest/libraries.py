"""What Python's libraries make of addresses: {"at": where they lie, "urls"} -> {library: [{"status", "text", "error", "seconds"}]}."""

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from tests.security.guest import common

given = common.asked()
sys.path.insert(0, given["at"])
import httpx  # noqa: E402
import requests  # noqa: E402


def by_urllib(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def by_requests(url: str) -> tuple[int, str]:
    reply = requests.get(url, timeout=60)
    return reply.status_code, reply.text


def by_httpx(url: str) -> tuple[int, str]:
    reply = httpx.get(url, timeout=60)
    return reply.status_code, reply.text


def fetch(by: Callable[[str], tuple[int, str]], url: str) -> dict[str, object]:
    began, status, text, error = time.monotonic(), 0, "", ""
    try:
        status, text = by(url)
    except Exception as fault:  # whatever it is, it is told
        error = f"{type(fault).__name__}: {fault}"
    return {"status": status, "text": text, "error": error, "seconds": time.monotonic() - began}


libraries = {"urllib": by_urllib, "requests": by_requests, "httpx": by_httpx}
common.tell({name: [fetch(by, url) for url in given["urls"]] for name, by in libraries.items()})
