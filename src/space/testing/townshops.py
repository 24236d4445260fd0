"""Servers of a town that package managers and git are content with: what pip, apt, git, go, cargo and npm fetch from.

Each is one small package with a few lines in it, made here, so that what a client fetched can be told from its content.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path
from urllib.parse import unquote

from space.host import process
from space.testing.egresslab import Upstream

Files = dict[str, bytes]
_KINDS = {"html": "text/html", "json": "application/json", "": "text/plain"}


class Site(Upstream):
    """A server of files by path. A path that ends in a slash is a page."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.files = files

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await self.head(reader)
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            status, kind, body = await self.reply(method, target, head, await body_of(reader, head))
            fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + (b"" if method == "HEAD" else body))
            await writer.drain()

    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        """Status, type and body of an answer."""
        path = unquote(target.partition("?")[0])
        found = self.files.get(path)
        if found is None or method not in ("GET", "HEAD"):
            return "404 Not Found", "text/plain", b"not here\n"
        suffix = path.rpartition("/")[2].rpartition(".")[2]
        kind = "text/html" if path.endswith("/") else _KINDS.get(suffix, "application/octet-stream")
        return "200 OK", kind, found


class GitSite(Site):
    """The same with one repository that can be cloned and pushed to by the smart protocol."""

    def __init__(self, repository: Path, at: str) -> None:
        super().__init__({})
        self._repository, self._at = repository, at

    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        path, _, query = target.partition("?")
        if method == "GET" and path == f"{self._at}/info/refs" and query.startswith("service=git-"):
            service = query.removeprefix("service=")
            said = f"# service={service}\n"
            refs = await asyncio.to_thread(self._run, service, b"", "--advertise-refs")
            return "200 OK", f"application/x-{service}-advertisement", f"{len(said) + 4:04x}{said}0000".encode() + refs
        service = path.removeprefix(f"{self._at}/")
        if method == "POST" and service in ("git-upload-pack", "git-receive-pack"):
            whole = gzip.decompress(body) if b"content-encoding: gzip" in head.lower() else body
            return "200 OK", f"application/x-{service}-result", await asyncio.to_thread(self._run, service, whole)
        return "404 Not Found", "text/plain", b"not here\n"

    def _run(self, service: str, data: bytes, *more: str) -> bytes:
        words = [service.removeprefix("git-"), "--stateless-rpc", *more, str(self._repository)]
        return subprocess.run(["git", *words], input=data, capture_output=True, check=False).stdout


async def body_of(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """All of a request's body."""
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(pieces)
    length = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in lower else 0
    return await reader.readexactly(length)


def pip_index(name: str = "demo", words: str = "from the index") -> Files:
    """Of one project, and of another that a policy may leave out (`other`)."""
    found: Files = {}
    for project in (name, "other"):
        file = f"{project}-1.0-py3-none-any.whl"
        wheel = io.BytesIO()
        info = f"{project}-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{project}.py", f"WORDS = {words!r}\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: town\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", f"{project}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
        digest = hashlib.sha256(wheel.getvalue()).hexdigest()
        found[f"/files/{file}"] = wheel.getvalue()
        link = f'<a href="/files/{file}#sha256={digest}">{file}</a>'
        found[f"/simple/{project}/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
    return found


def apt_repository(directory: Path, name: str = "demo") -> Files:
    """A flat one, without a signature (`[trusted=yes]`), of one package."""
    tree = directory / "package"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN").chmod(0o755)
    control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: Town <town@example.com>\nDescription: from the repository\n"
    (tree / "DEBIAN/control").write_text(control)
    (tree / "usr/share").mkdir(parents=True)
    (tree / f"usr/share/{name}").write_text("from the repository\n")
    process.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(directory / "demo.deb")])
    package = (directory / "demo.deb").read_bytes()
    digest, file = hashlib.sha256(package).hexdigest(), f"pool/{name}_1.0_all.deb"
    listed = f"{control}Filename: ./{file}\nSize: {len(package)}\nSHA256: {digest}\n\n".encode()
    sums = f" {hashlib.sha256(listed).hexdigest()} {len(listed)} Packages\n"
    release = f"Origin: Town\nSuite: town\nCodename: town\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nSHA256:\n{sums}".encode()
    return {"/debian/Packages": listed, "/debian/Release": release, f"/debian/{file}": package}


def git_repository(directory: Path) -> Path:
    """A bare one with one commit, which may be pushed to."""
    work, bare = directory / "work", directory / "project.git"
    process.run(["git", "init", "-q", "-b", "main", str(work)])
    (work / "words").write_text("from the repository\n")
    who = ["-c", "user.name=Town", "-c", "user.email=town@example.com"]
    process.run(["git", "-C", str(work), "add", "words"])
    process.run(["git", "-C", str(work), *who, "commit", "-q", "-m", "words"])
    process.run(["git", "clone", "-q", "--bare", str(work), str(bare)])
    return bare


def go_proxy(module: str) -> Files:
    """What GOPROXY wants to know of one module, version 1.0.0."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(f"{module}@v1.0.0/go.mod", f"module {module}\n\ngo 1.19\n")
        made.writestr(f"{module}@v1.0.0/demo.go", 'package demo\n\n// Words say where they are from.\nconst Words = "from the proxy"\n')
    at = f"/{module}/@v"
    return {
        f"{at}/list": b"v1.0.0\n",
        f"{at}/v1.0.0.info": b'{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}',
        f"{at}/v1.0.0.mod": f"module {module}\n\ngo 1.19\n".encode(),
        f"{at}/v1.0.0.zip": archive.getvalue(),
    }


def _tarball(top: str, files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


def cargo_index(host: str, name: str = "demo") -> Files:
    """A sparse index of one crate."""
    manifest = f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = _tarball(f"{name}-1.0.0", {"Cargo.toml": manifest, "src/lib.rs": 'pub const WORDS: &str = "from the index";\n'})
    line = {"name": name, "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(crate).hexdigest(), "features": {}, "yanked": False}
    return {
        "/index/config.json": json.dumps({"dl": f"https://{host}/crates/{{crate}}/{{version}}"}).encode(),
        f"/index/{name[:2]}/{name[2:4]}/{name}": json.dumps(line).encode() + b"\n",
        f"/crates/{name}/1.0.0": crate,
    }


def npm_registry(host: str, name: str = "demo") -> Files:
    """One package."""
    manifest = {"name": name, "version": "1.0.0", "main": "index.js"}
    archive = _tarball("package", {"package.json": json.dumps(manifest), "index.js": 'module.exports = "from the registry";\n'})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    dist = {"tarball": f"https://{host}/{name}/-/{name}-1.0.0.tgz", "integrity": integrity}
    document = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**manifest, "dist": dist}}}
    return {f"/{name}": json.dumps(document).encode(), f"/{name}/-/{name}-1.0.0.tgz": archive}
