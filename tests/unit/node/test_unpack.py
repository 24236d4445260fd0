"""The program that turns a builder's root into an image's: what it lays where, and what it refuses. Run in a root of its own here, too."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from space.node.inguest import unpack

Entry = tuple[str, dict[str, Any], bytes]


def entry(name: str, data: bytes = b"", **fields: Any) -> Entry:
    return name, fields, data


def tar(*entries: Entry) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields, data in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return stored.getvalue()


def directory(name: str, mode: int = 0o755, **fields: Any) -> Entry:
    return entry(name, type=tarfile.DIRTYPE, mode=mode, **fields)


class Image:
    """A layout directory that is being made."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "blobs/sha256").mkdir(parents=True)
        self.layers: list[dict[str, Any]] = []

    def blob(self, data: bytes, media: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.place / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    def layer(self, data: bytes, *, packed: bool = False) -> None:
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if packed else "")
        self.layers.append(self.blob(gzip.compress(data) if packed else data, kind))

    def done(self, **config: Any) -> Path:
        inner = self.blob(json.dumps({"config": config}).encode(), "application/vnd.oci.image.config.v1+json")
        document = json.dumps({"schemaVersion": 2, "config": inner, "layers": self.layers}).encode()
        manifest = self.blob(document, "application/vnd.oci.image.manifest.v1+json")
        (self.place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
        (self.place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        return self.place


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path / "image")


_RUN = """
import sys
sys.path.insert(0, {sources!r})
from space.node.inguest import unpack
try:
    layout = unpack.Layout({image!r})
    manifest, config = unpack.chosen(layout, {reference!r})
    unpack.unpack(layout, manifest, {root!r})
    unpack.replace({root!r})
except unpack.Refused as error:
    sys.exit(str(error))
print(unpack.json.dumps(unpack.settings(config)))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A builder's root, as it was before."""
    place = tmp_path / "root"
    for name in ("dev", "proc", "sys", "run", "usr"):
        (place / name).mkdir(parents=True)
    (place / "usr/old").write_text("old")
    (place / "etc").mkdir()
    (place / "etc/environment").write_text("SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\n")
    return place


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def unpacked(image: Path, root: Path, reference: str = "") -> dict[str, Any]:
    """In a process of its own, since it changes its root. AssertionError with what it said."""
    sources = str(Path(unpack.__file__).parents[3])
    code = _RUN.format(sources=sources, image=str(image), root=str(root), reference=reference)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_layers_lie_over_one_another_as_they_say(image: Image, root: Path) -> None:
    lower = tar(
        directory("."),
        directory("usr/", mode=0o755),
        directory("usr/bin"),
        entry("bin", type=tarfile.SYMTYPE, linkname="usr/bin"),
        entry("./usr/bin/tool", b"tool", mode=0o4755, uid=5, gid=6, mtime=1000),
        entry("usr/bin/same", type=tarfile.LNKTYPE, linkname="usr/bin/tool"),
        entry("etc/gone", b"x"),
        entry("etc/kept", b"kept", uid=1234),
        entry("opaque/lower", b"x"),
        entry("opaque/deep/lower", b"x"),
        entry("turned", b"file"),
        entry("/absolute", b"in the tree"),
    )
    upper = tar(
        entry("etc/.wh.gone"),
        directory("opaque"),
        entry("opaque/upper", b"upper"),
        entry("opaque/.wh..wh..opq"),
        entry("bin/added", b"through the link", mode=0o755),
        directory("turned"),
        entry("turned/inside", b"y"),
        directory("sealed", mode=0o500),
        entry("sealed/x", b"z"),
    )
    image.layer(lower, packed=True)
    image.layer(upper)
    found = unpacked(image.done(Env=["A=1"], Cmd=["tool"], User="5"), root)
    assert found == {"Env": ["A=1"], "Entrypoint": None, "Cmd": ["tool"], "User": "5", "WorkingDir": None}
    tool = (root / "usr/bin/tool").stat()
    assert (tool.st_uid, tool.st_gid, stat.S_IMODE(tool.st_mode), tool.st_mtime) == (5, 6, 0o4755, 1000)
    assert (root / "usr/bin/same").stat().st_ino == tool.st_ino
    assert (root / "bin").readlink() == Path("usr/bin")
    assert (root / "usr/bin/added").read_bytes() == b"through the link"
    assert names(root / "opaque") == ["upper"]
    assert not (root / "etc/gone").exists()
    assert (root / "etc/kept").stat().st_uid == 1234
    assert (root / "turned/inside").read_bytes() == b"y"
    assert stat.S_IMODE((root / "sealed").stat().st_mode) == 0o500
    assert (root / "absolute").read_bytes() == b"in the tree"
    assert not (root / "usr/old").exists()
    assert (root / "etc/environment").read_text().startswith("SSL_CERT_FILE")
    assert not (root / "space-new").exists()
    assert not (root / "space-old").exists()
    assert "user:x:1000:1000" in (root / "etc/passwd").read_text()
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777


HOSTILE: dict[str, tuple[bytes, str]] = {
    "path that leads out": (tar(entry("../out", b"x")), "a path leads out of the tree"),
    "path that leads out in the middle": (tar(entry("a/../../out", b"x")), "a path leads out of the tree"),
    "hard link that leads out": (tar(entry("x", type=tarfile.LNKTYPE, linkname="../../etc/passwd")), "a path leads out"),
    "hard link to nothing": (tar(entry("x", type=tarfile.LNKTYPE, linkname="etc/shadow")), "which is not there"),
    "device": (tar(entry("dev/mem", type=tarfile.CHRTYPE, devmajor=1, devminor=1)), "is a device"),
    "block device": (tar(entry("disk", type=tarfile.BLKTYPE, devmajor=254)), "is a device"),
    "file in a file": (tar(entry("a", b"x"), entry("a/b", b"y")), "is no directory"),
    "deep": (tar(entry("a/" * 300 + "b", b"x")), "a path leads out of the tree"),
    "whiteout of no name": (tar(entry(".wh..")), "a whiteout of no name"),
    "no tar": (b"no tar archive" * 100, "is no tar archive"),
    "cut off": (tar(entry("a", bytes(100_000)))[:50_000], "a layer is no tar archive"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused_and_nothing_is_outside(image: Image, root: Path, tmp_path: Path, name: str) -> None:
    data, words = HOSTILE[name]
    image.layer(data)
    with pytest.raises(AssertionError, match=words):
        unpacked(image.done(), root)
    assert names(tmp_path) == ["image", "root"]
    assert (root / "usr/old").read_text() == "old"


def test_links_that_lead_out_lead_nowhere_but_inside(image: Image, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    image.layer(tar(entry("up", type=tarfile.SYMTYPE, linkname="../../../.."), entry("abs", type=tarfile.SYMTYPE, linkname=str(tmp_path))))
    image.layer(tar(entry("up/written", b"x"), entry("up/usr/x", b"y")))
    unpacked(image.done(), root)
    assert (tmp_path / "secret").read_text() == "secret"
    assert (root / "written").read_bytes() == b"x"
    assert names(tmp_path) == ["image", "root", "secret"]


def test_bomb_is_refused_before_the_disk_is_full(image: Image, root: Path) -> None:
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=9) as packed:
        info = tarfile.TarInfo("bomb")
        info.size = 1 << 50
        packed.write(info.tobuf())
        packed.write(bytes(1 << 20))
    image.layers.append(image.blob(bomb.getvalue(), "application/vnd.oci.image.layer.v1.tar+gzip"))
    with pytest.raises(AssertionError, match="hold more than the disk"):
        unpacked(image.done(), root)


def _other_bytes(image: Image) -> None:
    for blob in (image.place / "blobs/sha256").iterdir():
        blob.write_bytes(blob.read_bytes()[:-1] + b"!")


def _no_index(image: Image) -> None:
    (image.place / "index.json").unlink()


def _wrong_size(image: Image) -> None:
    index = json.loads((image.place / "index.json").read_text())
    index["manifests"][0]["size"] += 1
    (image.place / "index.json").write_text(json.dumps(index))


def _linked_blob(image: Image) -> None:
    for blob in (image.place / "blobs/sha256").iterdir():
        blob.unlink()
        blob.symlink_to("/etc/passwd")


def _path_as_digest(image: Image) -> None:
    index = json.loads((image.place / "index.json").read_text())
    index["manifests"][0]["digest"] = "sha256:../../../etc/passwd"
    (image.place / "index.json").write_text(json.dumps(index))


def _two_images(image: Image) -> None:
    index = json.loads((image.place / "index.json").read_text())
    index["manifests"] *= 2
    (image.place / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_other_bytes, "has another digest"),
        (_no_index, "has no index.json"),
        (_wrong_size, "bytes and not"),
        (_linked_blob, "has no blobs/"),
        (_path_as_digest, "has no SHA-256 digest"),
        (_two_images, "2 images fit"),
    ],
)
def test_image_that_is_not_what_it_says_is_refused(image: Image, root: Path, spoil: Callable[[Image], None], words: str) -> None:
    image.layer(tar(entry("a", b"x")))
    image.done()
    spoil(image)
    with pytest.raises(AssertionError, match=words):
        unpacked(image.place, root)


def test_archive_of_a_layout_is_as_good(image: Image, root: Path, tmp_path: Path) -> None:
    image.layer(tar(entry("a", b"x")))
    image.done()
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(image.place, ".")
    unpacked(tmp_path / "image.tar", root)
    assert (root / "a").read_bytes() == b"x"


def test_layer_of_an_unknown_type_is_refused(image: Image, root: Path) -> None:
    image.layers.append(image.blob(b"x", "application/vnd.oci.image.layer.v1.tar+zstd"))
    with pytest.raises(AssertionError, match=r"tar with or without gzip is understood"):
        unpacked(image.done(), root)
