"""What package managers say becomes presets that always load, and no secret of the configuration is in them."""

from __future__ import annotations

import html
import json
import time
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.policy import aptsources, managers
from space.core.policy.discovery import Finding, Place, PlaceRefused, Want, grant_name, links_of, place, preset_text
from space.core.policy.model import Policy
from space.core.policy.paths import normalise
from space.core.policy.presets import Preset, load_preset
from space.core.policy.verdict import Allow, Asked, Layer, Stack

CANARY = "q7Xk2Vt9Lm4Zr8Wd1B"


def made(found: Finding) -> Preset:
    return load_preset(tomllib.loads(preset_text(found)), found.manager)


def rules(found: Finding) -> list[tuple[str, list[str]]]:
    return [(f"{rule.scheme}://{rule.host}:{rule.port}", [str(one) for one in rule.paths or ()]) for rule in made(found).rules]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://index.example.com/simple/", Place("https", "index.example.com", 443, "/simple")),
        ("HTTPS://Index.Example.com.:443", Place("https", "index.example.com", 443)),
        ("http://index.example.com:8080/a/../b/", Place("http", "index.example.com", 8080, "/b")),
        (f"https://{CANARY}@index.example.com/", Place("https", "index.example.com", 443, "", ("user information",))),
        (f"https://u:{CANARY}@h@index.example.com/", Place("https", "index.example.com", 443, "", ("user information",))),
        (f"https://index.example.com/x?k={CANARY}", Place("https", "index.example.com", 443, "/x", ("a query",))),
        (
            f"https://index.example.com/{CANARY}/simple",
            Place("https", "index.example.com", 443, "/*/simple", ("a segment of the path that looks like a token",)),
        ),
        ("https://index.example.com/python-virtual-dev-2024/", Place("https", "index.example.com", 443, "/python-virtual-dev-2024")),
    ],
)
def test_a_place_is_a_url_without_its_secrets(text: str, expected: Place) -> None:
    assert place(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "index.example.com/simple",
        f"ftp://u:{CANARY}@index.example.com/",
        f"https://me.example:12/{CANARY}@index.example.com/",
        f"https://me.example?{CANARY}@index.example.com/",
        "https://${HOST}/simple",
        "https://index.example.com/${TOKEN}/",
        "https://192.0.2.1/simple",
        "https://[2001:db8::1]/",
        "https://index.example.com:99999/",
        f"https://{CANARY}/",
        "https://co.uk/",
        "https://index.example.com/a\\b",
        "https://index.example.com/a/*/b",
        "https://index.example.com/\x1b[2J",
    ],
)
def test_what_is_no_place_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(PlaceRefused) as caught:
        place(text)
    assert "example" not in str(caught.value)
    assert CANARY not in str(caught.value)


def test_pip_reads_what_it_says_in_the_order_in_which_pip_does() -> None:
    text = (
        "global.index-url='https://a.example.com/simple'\n"
        ":env:.index-url='https://u:p@b.example.com:8443/simple/'\n"
        "global.extra-index-url='\\nhttps://c.example.com/x\\nhttp://d.example.com/y'\n"
        "global.find-links='/opt/wheels https://e.example.com/w/links.html'\n"
        "global.timeout='5'\nnonsense\nglobal.index-url=__import__('os')\n"
    )
    found = managers.pip(managers.pip_list(text), "https://default.example.com/simple")
    assert rules(found) == [
        ("https://b.example.com:8443", ["/simple/**"]),
        ("https://c.example.com:443", ["/x/**"]),
        ("http://d.example.com:80", ["/y/**"]),
        ("https://e.example.com:443", ["/w/**"]),
    ]
    assert '# grant = "pip-b.example.com"' in preset_text(found)
    assert found.files["/etc/pip.conf"].splitlines() == [
        "[global]",
        "index-url = https://b.example.com:8443/simple/",
        "extra-index-url =",
        "    https://c.example.com/x/",
        "    http://d.example.com/y/",
    ]


def test_pip_without_a_word_of_its_index_gets_no_rule_and_says_so() -> None:
    found = managers.pip({}, None)
    assert made(found).rules == ()
    assert "there is no rule for its default" in preset_text(found)
    assert rules(managers.pip({}, managers.pip_default("-i, --index-url <url>  Base URL (default\n   https://index.example.com/s).")))
    assert made(managers.pip({"no-index": "true"}, "https://index.example.com/s")).rules == ()


def test_a_pip_file_is_read_where_there_is_no_pip() -> None:
    text = "[global]\nindex_url = https://a.example.com/s\n[install]\nextra-index-url =\n  https://b.example.com/t\n"
    assert managers.pip_file(text) == {"index-url": "https://a.example.com/s", "extra-index-url": "\nhttps://b.example.com/t"}
    assert managers.pip_file("no = section") == {}


LINE = f"""
# deb http://no.example.com/debian x main
deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] https://u:{CANARY}@a.example.com/debian stable main contrib # comment
deb-src http://b.example.com/debian/ stable/updates main
deb https://c.example.com/flat ./
deb https://d.example.com/flat sub/
deb cdrom:[A b c]/ stable main
deb mirror+https://e.example.com/list stable main
deb https://f.example.com/$(ARCH) stable main
deb https://g.example.com/x $(ARCH)/
"""
STANZAS = """Types: deb deb-src
URIs: https://a.example.com/debian
 https://b.example.com/debian
Suites: stable
# comment
 stable-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: https://c.example.com/debian
Suites: stable
Components: main
"""


def test_apt_lines_become_rules_for_their_suites_and_pool() -> None:
    found = aptsources.apt(aptsources.one_line(LINE), ["Acquire::http::Proxy"])
    assert rules(found) == [
        ("https://a.example.com:443", ["/debian/dists/stable/**", "/debian/pool/**"]),
        ("http://b.example.com:80", ["/debian/dists/stable/updates/**", "/debian/pool/**"]),
        ("https://c.example.com:443", ["/flat/**"]),
        ("https://d.example.com:443", ["/flat/sub/**"]),
    ]
    text = preset_text(found)
    assert CANARY not in text
    assert "(cdrom)" in text
    assert "(mirror+https)" in text
    assert "Acquire::http::Proxy" in text
    assert "Signed-By: /usr/share/keyrings/a.gpg" in found.files["/etc/apt/sources.list.d/space.sources"]


def test_apt_stanzas_are_read_as_apt_does_and_our_own_are_read_again() -> None:
    found = aptsources.apt(aptsources.deb822(STANZAS))
    paths = ["/debian/dists/stable/**", "/debian/dists/stable-updates/**", "/debian/pool/**"]
    assert [(host, sorted(found)) for host, found in rules(found)] == [
        ("https://a.example.com:443", sorted(paths)),
        ("https://b.example.com:443", sorted(paths)),
    ]
    again = aptsources.deb822(found.files["/etc/apt/sources.list.d/space.sources"])
    assert rules(aptsources.apt(again)) == rules(found)


def test_apt_proxies_are_named_without_their_values() -> None:
    text = f'Acquire::http::Proxy "http://u:{CANARY}@p.example.com:3142";\nAcquire::https::Proxy "DIRECT";\nAcquire::http::Proxy::x "";\n'
    assert aptsources.proxies(text) == ["Acquire::http::Proxy"]


def test_npm_registries_of_scopes_and_their_credentials() -> None:
    text = (
        f"registry = https://a.example.com/npm/\n@acme:registry=https://b.example.com/\n//b.example.com/:_authToken={CANARY}\n"
        f"//c.example.com/:_password={CANARY}\n; registry=https://no.example.com/\nfund=false\n"
    )
    settings = managers.npmrc(text)
    assert CANARY not in str(settings)
    found = managers.npm(settings, None)
    assert rules(found) == [
        ("https://a.example.com:443", ["/npm/*", "/npm/@*/*", "/npm/*/-/*.tgz", "/npm/@*/*/-/*.tgz"]),
        ("https://b.example.com:443", ["/*", "/@*/*", "/*/-/*.tgz", "/@*/*/-/*.tgz"]),
    ]
    assert '# grant = "npm-b.example.com"' in preset_text(found)
    assert "npm-a.example.com" not in preset_text(found)
    assert found.files["/etc/npmrc"] == "registry=https://a.example.com/npm/\n@acme:registry=https://b.example.com/\n"
    assert "no rule for its default" in preset_text(managers.npm({}, None))


def test_cargo_sources_and_registries() -> None:
    near = tomllib.loads('[registries.own]\nindex = "sparse+https://a.example.com/index/"\n')
    far = tomllib.loads(
        '[source.default-name]\nreplace-with = "mirror"\n[source.mirror]\nregistry = "sparse+https://m.example.com/i/"\n'
        '[registries.own]\nindex = "sparse+https://no.example.com/"\n[registries.old]\nindex = "https://g.example.com/index.git"\n'
        '[source.vendored]\ndirectory = "vendor"\n'
    )
    found = managers.cargo([near, far], [managers.DefaultIndex("https://no.example.com", {"dl": "https://no.example.com/dl"})])
    sparse = ["/config.json", "/1/*", "/2/*", "/3/*/*", "/*/*/*"]
    assert rules(found) == [
        ("https://m.example.com:443", ["/i" + path for path in sparse]),
        ("https://a.example.com:443", ["/index" + path for path in sparse]),
    ]
    settings = tomllib.loads(found.files["/.cargo/config.toml"])
    assert settings["source"] == {"default-name": {"replace-with": "mirror"}, "mirror": {"registry": "sparse+https://m.example.com/i/"}}
    assert settings["registries"] == {"own": {"index": "sparse+https://a.example.com/index/"}}
    assert "fetched with git" in preset_text(found)
    assert "directory of this machine" in preset_text(found)
    assert "no rule for it" in preset_text(managers.cargo([]))
    own = managers.DefaultIndex("https://i.example.com", {"dl": "https://d.example.com/crates"}, rooted=True)
    assert rules(managers.cargo([], [own])) == [
        ("https://i.example.com:443", sparse),
        ("https://d.example.com:443", ["/crates/*/*/download"]),
    ]
    assert rules(managers.cargo([], [managers.DefaultIndex("https://i.example.com")])) == [("https://i.example.com:443", ["/**"])]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dl": "https://d.example.com/crates"}, [("https://d.example.com:443", ["/crates/*/*/download"])]),
        ({"dl": "https://d.example.com/c/{crate}/{version}.crate"}, [("https://d.example.com:443", ["/c/**"])]),
        ({"dl": "https://d.example.com/c/{prefix}{crate}"}, [("https://d.example.com:443", ["/c/**"])]),
        ({"dl": 1}, []),
        ([], []),
    ],
)
def test_cargo_downloads_are_where_the_index_says(config: Any, expected: list[Any]) -> None:
    assert rules(Finding("cargo", tuple(managers.cargo_downloads(config, [])))) == expected


def test_go_proxies_and_the_checksum_database() -> None:
    key = "sum.example.com+0123abcd+" + "A" * 44
    found = managers.go(
        {"GOPROXY": f"https://u:{CANARY}@p.example.com/go|direct,off", "GOSUMDB": f"{key} https://s.example.com/db?x={CANARY}"}
    )
    assert rules(found) == [
        ("https://p.example.com:443", ["/go/**"]),
        ("https://s.example.com:443", ["/db/supported", "/db/latest", "/db/lookup/**", "/db/tile/**"]),
    ]
    assert found.environment == {"GOPROXY": "https://p.example.com/go", "GOSUMDB": f"{key} https://s.example.com/db"}
    assert "(direct)" in preset_text(found)
    assert managers.go({"GOSUMDB": "off"}).environment == {"GOSUMDB": "off"}
    assert rules(managers.go({"GOSUMDB": "sum.example.com"}))[0][0] == "https://sum.example.com:443"


def test_links_are_narrowed_to_what_they_share() -> None:
    page = (
        '<a href="https://f.example.com/packages/ab/x.whl#sha256=1">x</a><A class="y" HREF=\'/own/files/x.whl\'>'
        '<a data-x="1" href="https://f.example.com/packages/cd/y.whl?t=1&amp;u=2">'
        '<a href="https://g.example.com/a/1"><a href="https://g.example.com/b/1"><a href="//h.example.com/demo/1/x.whl"><a href="mailto:x">'
    )
    found = links_of(managers.page_links(page, "https://i.example.com/simple/demo/"), "demo")
    assert [(want.place.host, want.below) for want in found] == [
        ("f.example.com", ("/packages/**",)),
        ("i.example.com", ("/own/**",)),
        ("g.example.com", ("/**",)),
        ("h.example.com", ("/**",)),
    ]


def test_a_page_of_any_kind_takes_linear_time() -> None:
    def seconds(size: int) -> float:
        begun = time.process_time()
        for piece in ("<a ", "<a href", "<a href = ", '<a href="', "<a x" + " " * 50, '<a href="x">', "<"):
            managers.page_links(piece * (size // len(piece)), "https://i.example.com/")
        return time.process_time() - begun

    seconds(10_000)
    assert seconds(400_000) < 40 * max(seconds(100_000), 0.01)


def test_a_port_of_two_schemes_and_hosts_without_rules_are_told() -> None:
    wants = [
        Want(Place("https", "a.example.com", 8080)),
        Want(Place("http", "a.example.com", 8080)),
        Want(Place("https", "localhost", 443)),
    ]
    found = Finding("pip", tuple(wants))
    assert rules(found) == [("https://a.example.com:8080", ["/**"])]
    assert "with http and with https" in preset_text(found)
    assert "one label or a public suffix" in preset_text(found)
    assert "localhost" not in preset_text(found)


@pytest.mark.parametrize(
    ("found", "allowed", "denied"),
    [
        (
            managers.pip({}, "https://r.example.com/simple/"),
            ["/simple/", "/simple/demo/"],
            ["/", "/legacy/", "/simple", "/simple/../legacy/", "/manage/account/token/"],
        ),
        (
            managers.npm({}, "https://r.example.com/"),
            ["/demo", "/@acme%2fdemo", "/@acme/demo", "/demo/-/demo-1.0.0.tgz", "/@acme/demo/-/demo-1.0.0.tgz"],
            ["/-/whoami", "/-/npm/v1/tokens", "/-/user/org.example:me", "/demo/-/demo-1.0.0.tgz/x", "/a/b/c", "/demo/../-/whoami"],
        ),
        (
            managers.cargo(
                [], [managers.DefaultIndex("https://r.example.com", {"dl": "https://r.example.com/api/v1/crates"}, rooted=True)]
            ),
            ["/config.json", "/1/a", "/2/ab", "/3/a/abc", "/se/rd/serde", "/api/v1/crates/serde/1.0.0/download"],
            ["/api/v1/crates/serde/1.0.0/yank", "/api/v1/crates/serde/owners", "/", "/me/tokens"],
        ),
        (
            aptsources.apt(aptsources.one_line("deb https://r.example.com/debian stable main")),
            ["/debian/dists/stable/InRelease", "/debian/pool/main/d/demo/demo_1_all.deb"],
            ["/debian/dists/other/InRelease", "/debian/", "/", "/debian/dists/stable/../other/x"],
        ),
        (
            managers.go({"GOSUMDB": "r.example.com"}),
            ["/supported", "/lookup/example.com/m@v1.0.0", "/tile/8/0/000", "/latest"],
            ["/", "/upload", "/lookup"],
        ),
    ],
    ids=lambda value: value.manager if isinstance(value, Finding) else "",
)
def test_a_preset_allows_reading_packages_and_nothing_else_of_a_registry(found: Finding, allowed: list[str], denied: list[str]) -> None:
    stack = Stack([Layer(Policy(rules=made(found).rules))])

    def outcomes(paths: list[str], method: str) -> list[bool]:
        asked = [Asked("r.example.com", 443, "https", method, normalise(path.encode())) for path in paths]
        return [isinstance(stack.request(one), Allow) for one in asked]

    assert outcomes(allowed, "GET") == outcomes(allowed, "HEAD") == [True] * len(allowed)
    assert outcomes(denied, "GET") == [False] * len(denied)
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        assert not any(outcomes([*allowed, *denied], method))


# -- properties ----------------------------------------------------------------------------------------------------------

ODD = st.text(alphabet="@:/?#\\[]%.$ {}\"'a1\n;=é\x7f", max_size=5)
HOST = st.sampled_from(["index.example.com", "mirror.example.org:8443", "localhost", "192.0.2.1", "co.uk", "x.example.com:80", ""])
# White space ends a URL in most of these files, so user information with some is no URL's; in queries it may be.
INFO = st.builds(lambda before, after: "".join((before + CANARY + after).split()), ODD, ODD)
SECRET = st.builds(lambda before, after: before + CANARY + after, ODD, ODD)


@st.composite
def secret_urls(draw: st.DrawFn) -> str:
    """A URL with the canary where configurations have secrets, among characters that mislead a parser."""
    info, query, token = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    text = draw(st.sampled_from(["https://", "http://", "HTTPS://"]))
    text += f"{draw(st.sampled_from(['', 'user:', 'me.example:']))}{draw(INFO)}@" if info else ""
    text += draw(HOST) + draw(st.sampled_from(["", "/", "/simple/", "/a/b"]))
    text += f"/{CANARY}/x" if token else ""
    return text + (f"?token={draw(SECRET)}" if query else "") + (f"#{draw(SECRET)}" if draw(st.booleans()) else "")


def everything(urls: list[str], words: str) -> list[Finding]:
    """What every parser makes of URLs, and of a text that is none."""
    spaced = " ".join(urls)
    listed = f"global.index-url={urls[0]!r}\nglobal.extra-index-url={spaced!r}\n:env:.find-links={spaced!r}\nglobal.proxy={urls[0]!r}\n"
    lines = "".join(f"deb {url} stable main\ndeb [x={CANARY}] {url} ./\n" for url in urls)
    stanza = f"Types: deb\nURIs: {spaced}\nSuites: stable\nComponents: main\nPassword: {CANARY}\n"
    rc = f"registry={urls[0]}\n//index.example.com/:_authToken={CANARY}\n//{CANARY}@x/:_auth={CANARY}\n"
    rc += "".join(f"@s{at}:registry={url}\n" for at, url in enumerate(urls))
    config = {"source": {f"s{at}": {"registry": f"sparse+{url}", "replace-with": "s0"} for at, url in enumerate(urls)}}
    config["registries"] = {f"r{at}": {"index": url, "token": CANARY} for at, url in enumerate(urls)}
    env = {"GOPROXY": ",".join(urls), "GOSUMDB": f"sum.example.com {urls[0]}", "GOFLAGS": CANARY}
    return [
        managers.pip(managers.pip_list(listed), urls[-1]),
        managers.pip(managers.pip_file(f"[global]\nindex-url = {urls[0]}\n{words}"), None),
        managers.pip(managers.pip_list(words), words),
        aptsources.apt(aptsources.one_line(lines + words), aptsources.proxies(words)),
        aptsources.apt(aptsources.deb822(stanza + words)),
        managers.npm(managers.npmrc(rc + words), None),
        managers.npm({}, urls[0]),
        managers.cargo([config]),
        managers.cargo([], [managers.DefaultIndex(urls[-1], {"dl": urls[0], "api": CANARY})]),
        Finding("cargo", tuple(managers.cargo_downloads({"dl": urls[0] + "/{crate}"}, []))),
        managers.go(env),
        managers.go({"GOPROXY": words, "GOSUMDB": words}),
        Finding(
            "pip", links_of(managers.page_links("".join(f'<a href="{html.escape(url)}">' for url in urls), "https://i.example.com/"), "pip")
        ),
        Finding("npm", links_of(managers.tarballs({"versions": {"1": {"dist": {"tarball": urls[0]}}}}, "https://i.example.com/"), "x")),
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(secret_urls(), min_size=1, max_size=3), st.text(max_size=60))
def test_no_secret_of_a_configuration_is_in_the_preset_and_it_always_loads(urls: list[str], words: str) -> None:
    for found in everything(urls, words):
        text = preset_text(found)
        assert CANARY.lower() not in text.lower()
        preset = made(found)
        assert all(rule.methods == frozenset({"GET", "HEAD"}) for rule in preset.rules)
        assert preset.guest.files == found.files


@pytest.mark.parametrize("odd", ["#", '"', "'", "?", "/", "\\", "@", "%", ";"])
def test_a_secret_that_looks_like_a_host_is_not_taken_for_one(odd: str) -> None:
    for found in everything([f"https://{CANARY}.a{odd}@index.example.com/simple/"], ""):
        assert CANARY.lower() not in preset_text(found).lower()


@settings(deadline=None)
@given(
    st.text(max_size=200),
    st.dictionaries(st.sampled_from(["source", "registries"]), st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(), st.text()))),
)
def test_any_text_makes_a_preset_that_loads(text: str, config: Any) -> None:
    for found in [*everything([text], text), managers.cargo([config])]:
        made(found)


@given(st.text(max_size=80))
def test_a_grant_has_a_name_that_policies_take(host: str) -> None:
    row = {"host": "a.example.com", "grant": grant_name("pip", host.lower())}
    assert load_preset({"version": 1, "rule": [row]}, "pip").rules


def test_what_no_link_says_is_no_link() -> None:
    assert managers.tarballs(json.loads('{"versions": {"1": {"dist": {"tarball": 1}}, "2": 3}}'), "https://i.example.com/") == []
    assert managers.tarballs([], "https://i.example.com/") == []
    assert links_of([f"https://h{at}.example.com/x" for at in range(5000)], "") != ()
