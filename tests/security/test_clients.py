"""What people's programs are told in a real guest: each fetches what is allowed, and is refused the rest at once, with the reason."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.security.walled import PATIENCE, Walled

from space.testing import townshops
from space.testing.egresstown import Town

SITE, INDEX, APT, GIT, UNLISTED = (f"{word}.example.com" for word in ("site", "index", "apt", "git", "unlisted"))
RULES = (
    {"host": SITE, "paths": ["/open/**"], "methods": ["GET"]},
    {"host": INDEX, "paths": ["/simple/demo/", "/files/**"], "methods": ["GET", "HEAD"]},
    {"host": APT, "paths": ["/debian/**"], "methods": ["GET"]},
    {"host": GIT, "paths": ["/project.git/info/refs"], "methods": ["GET"]},
    {"host": GIT, "paths": ["/project.git/git-upload-pack"], "methods": ["POST"]},
)
_LIBRARIES = ("requests", "urllib3", "charset-normalizer", "certifi", "idna", "httpx", "httpcore", "h11", "anyio", "typing-extensions")
_THERE = "/opt/libraries"


@dataclass(frozen=True)
class Client:
    """allowed: a command, and what is read then. refused: one that the gateway refuses by its rules, unlisted: for a name of no rule; each
    with what a person reads.
    """

    allowed: tuple[str, str]
    refused: tuple[str, str]
    unlisted: tuple[str, str]


def _pip(project: str, host: str = INDEX) -> str:
    install = f"pip install --no-cache-dir --root-user-action ignore --target /tmp/pip --index-url https://{host}/simple {project}"
    return f"rm -rf /tmp/pip; {install} && PYTHONPATH=/tmp/pip python3 -c 'import demo; print(demo.WORDS)'"


def _apt(host: str, path: str) -> str:
    options = "-o Dir::Etc::sourcelist=/tmp/town.list -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"
    source = f"echo 'deb [trusted=yes] https://{host}/{path} ./' >/tmp/town.list"
    install = f"apt-get {options} -qq install -y demo && cat /usr/share/demo"
    return f"{source}; apt-get {options} -q -o APT::Update::Error-Mode=any update && {install}"


_COMMIT = "git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m out"
CLIENTS = {
    "curl": Client(
        (f"curl -sS https://{SITE}/open/door", "GET /open/door HTTP/1.1 got 0"),
        (f"curl -sS -w '%{{http_code}}' https://{SITE}/shut", '"reason":"path_not_allowed"'),
        (f"curl -sS https://{UNLISTED}/", "Could not resolve host"),
    ),
    "pip": Client(
        (_pip("demo"), "from the index"),
        (_pip("other"), "No matching distribution found for other"),
        (_pip("demo", UNLISTED), "name resolution"),
    ),
    "apt": Client(
        (_apt(APT, "debian"), "from the repository"),
        (_apt(APT, "other"), "403  Forbidden"),
        (_apt(UNLISTED, "debian"), "resolv"),
    ),
    "git": Client(
        (f"rm -rf /tmp/p; git clone -q https://{GIT}/project.git /tmp/p && cat /tmp/p/words", "from the repository"),
        (f"cd /tmp/p && {_COMMIT} && git push https://{GIT}/project.git main", "error: 403"),
        (f"git clone -q https://{UNLISTED}/project.git /tmp/q", "Could not resolve host"),
    ),
}


@pytest.fixture(scope="module")
def shops(place: Town, tmp_path_factory: pytest.TempPathFactory) -> Town:
    """The town with everything that they fetch from."""
    place.serve(SITE)
    place.serve(UNLISTED)
    place.serve(INDEX, townshops.Site(townshops.pip_index()))
    place.serve(APT, townshops.Site(townshops.apt_repository(tmp_path_factory.mktemp("apt"))))
    repository = townshops.git_repository(tmp_path_factory.mktemp("git"))
    place.serve(GIT, townshops.GitSite(repository, "/project.git"))
    return place


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of the tests' own environment, as a tree."""
    tree = tmp_path_factory.mktemp("libraries")
    for name in _LIBRARIES:
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), tree / file)
    return tree


@pytest.mark.parametrize("program", CLIENTS)
def test_a_program_fetches_what_is_allowed_and_gives_up_on_the_rest(guest: Walled, shops: Town, program: str) -> None:
    one = CLIENTS[program]
    guest.allow(*RULES)
    status, told = guest.sh(one.allowed[0])
    assert (status, one.allowed[1] in told) == (0, True), told
    guest.gives_up(*one.refused)
    guest.gives_up(*one.unlisted)
    assert shops.servers[UNLISTED].heads == []
    assert not [asked for asked in shops.zone.asked if asked[1] == UNLISTED]
    assert [record for record in guest.records() if record.kind == "request" and record.status == 403]


def test_pythons_libraries_fetch_what_is_allowed_and_give_up_on_the_rest(guest: Walled, shops: Town, libraries: Path) -> None:
    guest.allow(*RULES)
    guest.sandbox.upload(libraries, "/opt/libraries", user="root")
    urls = [f"https://{SITE}/open/door", f"https://{SITE}/shut", f"https://{UNLISTED}/"]
    for name, (allowed, refused, unlisted) in guest.root("libraries", {"at": "/opt/libraries", "urls": urls}).items():
        assert (allowed["status"], allowed["text"]) == (200, "GET /open/door HTTP/1.1 got 0"), (name, allowed)
        assert (refused["status"], json.loads(refused["text"])["reason"]) == (403, "path_not_allowed"), (name, refused)
        assert "name resolution" in unlisted["error"], (name, unlisted)
        assert max(one["seconds"] for one in (refused, unlisted)) < PATIENCE.total_seconds()
    assert shops.servers[UNLISTED].heads == []


def test_a_refusal_tells_a_program_what_and_why_and_finds_its_record(guest: Walled, shops: Town) -> None:
    guest.allow(*RULES)
    status, body = guest.get(f"https://{SITE}/open/door", "-X", "DELETE")
    said = json.loads(body)
    request_id = said.pop("request_id")
    assert (status, said) == ("403", {"error": "egress_denied", "reason": "method_not_allowed", "rule": "rule[0]", "host": SITE})
    (record,) = [one for one in guest.reasons("method_not_allowed") if one.request_id == request_id]
    assert (record.kind, record.method, record.path, record.status, record.name) == ("request", "DELETE", "/open/door", 403, SITE)
    # a name: REFUSED, and the extended error "blocked" (RFC 8914); an address: reset at once
    found = guest.root("refusals", {"name": UNLISTED, "address": shops.address(UNLISTED)})
    assert found["name"] == {"code": 5, "extended": 15}
    assert found["address"]["error"] == "ConnectionRefusedError"
    assert found["address"]["seconds"] < 1
