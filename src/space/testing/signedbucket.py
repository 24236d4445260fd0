"""A bucket that takes only requests signed with its key (AWS Signature Version 4): every signature is computed here anew, by itself."""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import parse_qsl, quote

from space.testing.townshops import Site

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})\Z"
)
_UNSAID = ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")


class SignedBucket(Site):
    """key: its id and its secret. objects: by path. wrong: why requests were refused. signed: how many were not."""

    def __init__(self, key: tuple[str, str], region: str, service: str = "s3") -> None:
        super().__init__({})
        self.key, self.region, self.service = key, region, service
        self.objects: dict[str, bytes] = {}
        self.wrong: list[str] = []
        self.signed = 0

    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        """Of an object: kept, given, or refused."""
        lines = head.decode("latin-1").split("\r\n")[1:]
        fields = {name.lower(): " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines if line)}
        wrong = self.wrong_with(method, target, fields, body)
        if wrong:
            self.wrong.append(wrong)
            return "403 Forbidden", "application/xml", b"<Error><Code>SignatureDoesNotMatch</Code></Error>"
        self.signed += 1
        path = target.partition("?")[0]
        if method == "PUT":
            self.objects[path] = _unchunked(body) if "aws-chunked" in fields.get("content-encoding", "") else body
            return "200 OK", "text/plain", b""
        if path not in self.objects:
            return "404 Not Found", "application/xml", b"<Error><Code>NoSuchKey</Code></Error>"
        return "200 OK", "application/octet-stream", self.objects[path]

    def wrong_with(self, method: str, target: str, fields: dict[str, str], body: bytes) -> str:
        """Why a request is refused, or nothing. fields: by their names in lower case."""
        found = _AUTHORIZATION.match(fields.get("authorization", ""))
        if found is None:
            return "not signed"
        ident, day, region, service, names, signature = found.groups()
        if (ident, region, service) != (self.key[0], self.region, self.service):
            return f"signed for {ident} {region} {service}"
        said = fields.get("x-amz-content-sha256", "")
        if said not in _UNSAID and not said.startswith("STREAMING-") and said != hashlib.sha256(body).hexdigest():
            return "another body than was signed"
        path, _, query = target.partition("?")
        pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, keep_blank_values=True))
        heads = "".join(f"{name}:{fields.get(name, '')}\n" for name in names.split(";"))
        canonical = "\n".join([method, path, "&".join(f"{name}={value}" for name, value in pairs), heads, names, said])
        scope = f"{day}/{region}/{service}/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", fields.get("x-amz-date", ""), scope, hashlib.sha256(canonical.encode("latin-1")).hexdigest()])
        key = f"AWS4{self.key[1]}".encode()
        for part in (day, region, service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return "" if hmac.digest(key, text.encode(), "sha256").hex() == signature else "another signature"


def _unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        if not length:
            return found
        found, body = found + body[:length], body[length + 2 :]
    raise ValueError("a body without a last chunk")
