"""Discovery asks the tools of this machine and reads real files; a page is fetched within bounds, and without credentials."""

from __future__ import annotations

import base64
import os
import shutil
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from space.core.policy.addresses import Address
from space.core.policy.discovery import Finding, preset_text
from space.core.policy.presets import load_preset
from space.model.errors import InvalidArgument
from space.policy.discover import MANAGERS, Machine, discover, preset
from space.policy.fetch import Access, FetchFailed, Page, addresses_of, get
from space.policy.files import write
from space.policy.overheard import connect_of, overheard

CANARY = "q7Xk2Vt9Lm4Zr8Wd1B"


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed here")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """This machine's programs with the configuration of nobody."""
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(("PIP_", "NPM_CONFIG", "CARGO_", "GO"))}
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config"), "CARGO_HOME": str(tmp_path / "cargo")}
    go = {"GOENV": "off", "GOTOOLCHAIN": "local", "GOCACHE": str(tmp_path / "go"), "GOPATH": str(tmp_path / "go")}
    nobodys = {"PIP_CONFIG_FILE": os.devnull, "NPM_CONFIG_GLOBALCONFIG": str(tmp_path / "none")}
    return Machine(kept | home | go | nobodys, tmp_path, tmp_path, offline=True)


def with_variables(machine: Machine, **variables: str) -> Machine:
    return replace(machine, environment={**machine.environment, **variables})


def rules(found: Finding) -> dict[str, list[str]]:
    text = preset_text(found)
    assert CANARY not in text
    loaded = load_preset(tomllib.loads(text), found.manager)
    return {f"{rule.scheme}://{rule.host}:{rule.port}": [str(one) for one in rule.paths or ()] for rule in loaded.rules}


@needs("pip")
def test_pip_is_asked_itself(machine: Machine) -> None:
    asked = with_variables(
        machine, PIP_INDEX_URL=f"https://u:{CANARY}@index.example.com/simple", PIP_EXTRA_INDEX_URL="https://x.example.org:8443/s"
    )
    found = discover("pip", asked)
    assert rules(found) == {"https://index.example.com:443": ["/simple/**"], "https://x.example.org:8443": ["/s/**"]}
    assert "offline" in preset_text(found)


@needs("pip")
def test_the_index_of_pip_by_default_is_what_its_help_says(machine: Machine) -> None:
    found = discover("pip", machine)
    text = machine.ask("pip", "download", "--help") or ""
    assert len(rules(found)) == 1
    assert all(host.removeprefix("https://").removesuffix(":443") in text for host in rules(found))


def test_files_are_read_where_no_tool_is(machine: Machine, tmp_path: Path) -> None:
    bare = with_variables(machine, PATH=str(tmp_path / "none"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pip.conf").write_text("[global]\nindex-url = https://far.example.com/s\n")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(f"[global]\nindex-url = https://{CANARY}@near.example.com/s\n")
    (tmp_path / ".npmrc").write_text("registry=https://npm.example.com/\n")
    assert rules(discover("pip", bare)) == {"https://near.example.com:443": ["/s/**"]}
    assert list(rules(discover("npm", bare))) == ["https://npm.example.com:443"]
    for manager in MANAGERS:
        if manager != "apt":  # whose files are all there is
            assert "is not installed here" in preset_text(discover(manager, bare))
    assert rules(discover("go", bare)) == {}


@needs("npm")
def test_npm_is_asked_itself_and_its_files_say_the_scopes(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text(
        f"registry=https://npm.example.com/r/\n@acme:registry=https://u:{CANARY}@acme.example.org/\n//npm.example.com/r/:_authToken={CANARY}\n"
    )
    found = discover("npm", machine)
    assert list(rules(found)) == ["https://npm.example.com:443", "https://acme.example.org:443"]
    assert '# grant = "npm-npm.example.com"' in preset_text(found)


@needs("npm")
def test_the_registry_of_npm_by_default_is_npms_own_word(machine: Machine) -> None:
    said = (machine.ask("npm", "config", "get", "registry") or "").strip()
    assert said.startswith("https://")
    assert [host.removesuffix(":443") for host in rules(discover("npm", machine))] == [said.rstrip("/")]


def test_cargo_reads_its_files_from_the_directory_upwards(machine: Machine, tmp_path: Path) -> None:
    inner = tmp_path / "a/b"
    (inner / ".cargo").mkdir(parents=True)
    (tmp_path / "a/.cargo").mkdir()
    (tmp_path / "cargo").mkdir()
    (inner / ".cargo/config.toml").write_text('[registries.own]\nindex = "sparse+https://near.example.com/"\n')
    (tmp_path / "a/.cargo/config").write_text('[registries.own]\nindex = "sparse+https://far.example.com/"\n')
    (tmp_path / "cargo/config.toml").write_text(
        f'[registries.home]\nindex = "sparse+https://home.example.com/i/?{CANARY}"\ntoken = "{CANARY}"'
    )
    found = discover(
        "cargo", with_variables(replace(machine, directory=inner), CARGO_REGISTRIES_ENV_INDEX="sparse+https://env.example.com/")
    )
    # Where no file of the machine replaces it, cargo's own index is there as well.
    named = sorted(host for host in rules(found) if host.endswith(".example.com:443"))
    assert named == ["https://env.example.com:443", "https://home.example.com:443", "https://near.example.com:443"]


def test_cargo_that_is_not_installed_is_known_by_its_cache_alone(machine: Machine, tmp_path: Path) -> None:
    bare = with_variables(machine, PATH=str(tmp_path / "none"))
    assert "there is no rule for it" in preset_text(discover("cargo", bare))
    kept = tmp_path / "cargo/registry/index/index.example.com-0123456789abcdef"
    kept.mkdir(parents=True)
    (kept / "config.json").write_text('{"dl": "https://dl.example.com/crates"}')
    assert rules(discover("cargo", bare)) == {
        "https://index.example.com:443": ["/**"],
        "https://dl.example.com:443": ["/crates/*/*/download"],
    }


@needs("cargo")
def test_cargo_is_overheard_when_no_file_names_its_index(machine: Machine) -> None:
    here = with_variables(machine, HOME=os.environ.get("HOME", "/"))  # where rustup keeps the cargo that its shim runs
    (host,) = rules(discover("cargo", here))
    assert host.startswith("https://")


def test_only_who_knows_the_word_is_heard() -> None:
    word = "0123456789abcdef"
    credential = base64.b64encode(f"space:{word}".encode()).decode()
    head = f"CONNECT index.example.com:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {credential}\r\n\r\n".encode()
    assert connect_of(head, word) == ("index.example.com", 443)
    for other in (
        b"",
        head.replace(b"CONNECT", b"GET"),
        head.replace(b"Basic ", b"Basic x"),
        head.replace(b".com:443", b".com:x"),
        head[:40],
    ):
        assert connect_of(other, word) is None
    assert connect_of(head, "another") is None
    assert connect_of(head.replace(credential.encode(), credential.swapcase().encode()), word) is None


def test_a_program_that_connects_to_nothing_is_waited_for_and_others_are_not_heard(tmp_path: Path) -> None:
    script = tmp_path / "program"
    # One CONNECT with the word of the variable, one without.
    script.write_text(
        "#!/usr/bin/env python3\nimport base64, os, socket, urllib.parse\n"
        "at = urllib.parse.urlsplit(os.environ['MY_PROXY'])\n"
        "for word, host in (('no', 'evil.example.net'), (at.password, 'index.example.com')):\n"
        "    with socket.create_connection((at.hostname, at.port)) as s:\n"
        "        auth = base64.b64encode(f'space:{word}'.encode()).decode()\n"
        "        s.sendall(f'CONNECT {host}:443 HTTP/1.1\\r\\nProxy-Authorization: Basic {auth}\\r\\n\\r\\n'.encode())\n"
        "        assert s.recv(1) == b''\n"
        "assert os.listdir(os.environ['MY_HOME']) == []\n"
    )
    script.chmod(0o755)
    assert overheard([str(script)], os.environ, proxy="MY_PROXY", home="MY_HOME") == [("index.example.com", 443)]
    assert overheard(["/bin/true"], os.environ, proxy="MY_PROXY", home="MY_HOME") == []
    assert overheard(["/nonexistent"], os.environ, proxy="MY_PROXY", home="MY_HOME") == []
    assert not [one for one in threading.enumerate() if one.name == "overheard"]


@needs("go")
def test_go_is_asked_itself(machine: Machine) -> None:
    found = discover("go", with_variables(machine, GOPROXY=f"https://u:{CANARY}@go.example.com/p,direct", GOSUMDB="off"))
    assert rules(found) == {"https://go.example.com:443": ["/p/**"]}
    assert found.environment == {"GOPROXY": "https://go.example.com/p", "GOSUMDB": "off"}
    assert rules(discover("go", machine))  # what it goes by when nobody configures it


@needs("apt-config")
def test_apt_reads_both_forms_of_sources(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    (folder.parent / "sources.list").write_text("deb http://one.example.com/debian stable main\n")
    (folder / "two.sources").write_text("Types: deb\nURIs: https://two.example.com/d\nSuites: stable\nComponents: main\n")
    (folder / "three.list.disabled").write_text("deb http://three.example.com/debian stable main\n")
    assert list(rules(discover("apt", machine))) == ["http://one.example.com:80", "https://two.example.com:443"]


@pytest.mark.parametrize("manager", MANAGERS)
def test_this_machines_own_configuration_makes_a_preset_that_loads(manager: str) -> None:
    text, count = preset(manager, Machine(offline=True))
    assert len(load_preset(tomllib.loads(text), manager).rules) == count


# -- pages ---------------------------------------------------------------------------------------------------------------


def test_links_of_an_index_become_rules(machine: Machine, tmp_path: Path) -> None:
    bodies = {
        "https://i.example.com/s/pip/": b'<a href="https://files.example.com/packages/a/b.whl">',
        "https://n.example.com/npm-normalize-package-bin": b'{"versions": {"1": {"dist": {"tarball": "https://t.example.com/d/x/1.tgz"}}}}',
        "https://c.example.com/config.json": b'{"dl": "https://d.example.com/c/{crate}.crate"}',
    }

    def fetch(url: str, *_: Any, **__: Any) -> Page:
        return Page((url, f"https://moved.example.com/x/?t={CANARY}"), bodies[url])

    (tmp_path / ".npmrc").write_text("registry=https://n.example.com/\n")
    asked = with_variables(
        replace(machine, offline=False, fetch=fetch, resolve=lambda _: []),
        PIP_INDEX_URL="https://i.example.com/s",
        CARGO_REGISTRIES_OWN_INDEX="sparse+https://c.example.com/",
        PATH="/nonexistent",
    )
    assert rules(discover("pip", asked)) == {
        "https://i.example.com:443": ["/s/**"],
        "https://moved.example.com:443": ["/**"],
        "https://files.example.com:443": ["/packages/**"],
    }
    assert rules(discover("npm", asked))["https://t.example.com:443"] == ["/d/**"]
    assert rules(discover("cargo", asked))["https://d.example.com:443"] == ["/c/**"]


def test_a_mirror_that_the_gateway_will_not_dial_by_itself_is_told(machine: Machine) -> None:
    def fetch(url: str, *_: Any, **__: Any) -> Page:
        return Page((url,), b"")

    def resolve(host: str) -> list[Address]:
        return {"i.example.com": [ip_address("93.184.215.14")], "x.example.com": [ip_address("10.0.0.7")]}.get(host, [])

    asked = with_variables(
        replace(machine, offline=False, fetch=fetch, resolve=resolve),
        PIP_INDEX_URL="https://i.example.com/s",
        PIP_EXTRA_INDEX_URL="https://x.example.com/s https://y.example.com/s",
        PATH="/nonexistent",
    )
    notes = [line for line in preset_text(discover("pip", asked)).splitlines() if "not public" in line]
    assert notes == [
        "# note: x.example.com has an address here that is not public (private): it is dialled only if egress_reachable lists it"
    ]


def test_the_resolver_is_this_machines() -> None:
    assert ip_address("127.0.0.1") in addresses_of("localhost")
    assert addresses_of("nothing.invalid") == []


def test_an_index_that_does_not_answer_is_told(machine: Machine) -> None:
    def fetch(*_: Any, **__: Any) -> Page:
        raise FetchFailed("it answers with 401")

    asked = with_variables(
        replace(machine, offline=False, fetch=fetch, resolve=lambda _: []), PIP_INDEX_URL="https://i.example.com/s", PATH="/nonexistent"
    )
    assert "where the links of i.example.com lead is not known: it answers with 401" in preset_text(discover("pip", asked))


Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, Answer], list[Any]]]:
    """A server in this process: answers by path, and the fields of requests that came."""
    answers: dict[str, Answer] = {}
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            answers[self.path](self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers, seen
    server.shutdown()
    thread.join()
    server.server_close()


def body(data: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def moved(place: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.end_headers()

    return answer


def test_a_page_is_fetched_over_redirects_without_credentials(served: tuple[str, dict[str, Answer], list[Any]]) -> None:
    url, answers, seen = served
    answers |= {"/a": moved("/b"), "/b": body(b"x" * 1000)}
    page = get(f"{url}/a", Access(), accept="text/html", most=10)
    assert page == Page((f"{url}/a", f"{url}/b"), b"x" * 10)
    assert [fields["Accept"] for fields in seen] == ["text/html"] * 2
    assert not any({"Authorization", "Cookie"} & set(fields) for fields in seen)


def test_circles_errors_and_other_schemes_are_failures(served: tuple[str, dict[str, Answer], list[Any]]) -> None:
    url, answers, seen = served
    answers |= {"/a": moved("/a"), "/file": moved("file:///etc/passwd"), "/no": lambda handler: handler.send_error(403)}
    for path, words in (("/a", "302"), ("/file", "302"), ("/no", "403")):
        with pytest.raises(FetchFailed, match=words):
            get(url + path, Access(), accept="text/html")
    assert len(seen) < 10
    with pytest.raises(FetchFailed, match="cannot be reached"):
        get("http://127.0.0.1:1/", Access(), accept="text/html")


def test_a_server_that_trickles_is_given_up_in_time(served: tuple[str, dict[str, Answer], list[Any]]) -> None:
    url, answers, _ = served
    done = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not done.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    answers["/slow"] = answer
    begun = time.monotonic()
    with pytest.raises(FetchFailed, match="no whole answer"):
        get(f"{url}/slow", Access(), accept="text/html", seconds=0.5)
    assert time.monotonic() - begun < 5
    done.set()


def test_a_preset_is_written_whole_and_another_one_is_not_replaced_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "presets"
    assert write(folder, "pip", "version = 1\n")
    assert not write(folder, "pip", "version = 1\n")
    with pytest.raises(Exception, match="says something else"):
        write(folder, "pip", "# new\n")
    assert write(folder, "pip", "# new\n", replace=True)
    assert [path.name for path in folder.iterdir()] == ["pip.toml"]
    assert (folder / "pip.toml").read_text() == "# new\n"
    assert (folder / "pip.toml").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("replace_it", [False, True])
def test_a_preset_takes_the_place_of_a_regular_file_only(tmp_path: Path, replace_it: bool) -> None:
    os.mkfifo(tmp_path / "pip.toml")
    with pytest.raises(InvalidArgument, match="is no regular file"):
        write(tmp_path, "pip", "x = 1\n", replace=replace_it)
    assert (tmp_path / "pip.toml").is_fifo()
