"""The tripwire: every form of an echo is found wherever chunks are cut, and what is none passes as it is and at once."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.credentials.tripwire import Form, Tripwire, needles, overwritten

TOKEN = b"sk_live_0Pn2DMIKRiIjIpZLtxvLqw-9"
ODD = b'p/+ss"w\\rd= \xc3\xa9%42/+?&ZZ'
FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda secret: secret,
    "base64": base64.b64encode,
    "base64 behind one": lambda secret: base64.b64encode(b"u" + secret),
    "base64 behind two": lambda secret: base64.b64encode(b"u:" + secret),
    "base64 before more": lambda secret: base64.b64encode(b"user:" + secret + b" and so on"),
    "urlsafe": base64.urlsafe_b64encode,
    "urlsafe behind one": lambda secret: base64.urlsafe_b64encode(b"?" + secret),
    "urlsafe behind two": lambda secret: base64.urlsafe_b64encode(b"?>" + secret),
    "hex": lambda secret: secret.hex().encode(),
    "HEX": lambda secret: secret.hex().upper().encode(),
    "url": lambda secret: urllib.parse.quote_from_bytes(secret, safe="").encode(),
    "url lower": lambda secret: b"".join(bytes((b,)) if chr(b).isalnum() and b < 128 else b"%%%02x" % b for b in secret),
    "form": lambda secret: urllib.parse.quote_plus(secret).encode(),
    "url whole": lambda secret: b"".join(b"%%%02X" % byte for byte in secret),
    "json": lambda secret: json.dumps(secret.decode("latin-1"))[1:-1].encode(),
    "json slashes": lambda secret: json.dumps(secret.decode("latin-1"))[1:-1].replace("/", "\\/").encode(),
    "json whole": lambda secret: b"".join(b"\\u%04x" % byte for byte in secret),
    "json WHOLE": lambda secret: b"".join(b"\\u%04X" % byte for byte in secret),
}  # fmt: skip


@pytest.mark.parametrize(
    "secret",
    [TOKEN, ODD, b"0123456789abcdef0123456789abcdef", b"aaaaaaaaaaaaaaaaaaaa", b"\xff\xfe\xfd\xfc\xfb\xfa\xfb\xef\xbe", b"%25%2525\\u0025"],
)
@pytest.mark.parametrize("form", FORMS)
def test_an_echo_is_overwritten_however_it_is_cut(secret: bytes, form: str) -> None:
    sought = needles(secret)
    echo = FORMS[form](secret)
    data = b'{"said": "' + echo + b'"}' + b" and more"
    whole, echoes = overwritten(sought, data)
    assert len(whole) == len(data)
    assert echoes >= 1
    assert secret not in whole
    assert len(secret) < 20 or echo[6:-6] not in whole
    assert whole.startswith(b'{"said": "')
    assert whole.endswith(b'"} and more')
    for cut in range(len(data) + 1):
        wire = Tripwire(sought)
        assert wire.receive(data[:cut]) + wire.receive(data[cut:]) + wire.end() == whole, cut
        assert wire.echoes == echoes
    wire = Tripwire(sought)
    assert b"".join(wire.receive(data[at : at + 1]) for at in range(len(data))) + wire.end() == whole


@given(st.binary(min_size=6, max_size=48), st.lists(st.binary(max_size=80), max_size=8), st.data())
def test_whatever_the_secret_no_cut_lets_it_pass_and_nothing_is_lost(secret: bytes, parts: list[bytes], data: st.DataObject) -> None:
    sought = needles(secret)
    name = data.draw(st.sampled_from(sorted(FORMS)))
    text = b"".join(parts) + FORMS[name](secret) + b"".join(reversed(parts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    wire, out, at = Tripwire(sought), b"", 0
    for cut in [*cuts, len(text)]:
        out += wire.receive(text[at:cut])
        assert wire.held < sought.longest
        at = cut
    out += wire.end()
    assert len(out) == len(text)
    assert wire.echoes >= 1
    assert secret not in out or set(secret) <= set(b"*")


def _units(form: Form) -> re.Pattern[bytes]:
    return re.compile(b"".join(b"(?:%s)" % b"|".join(map(re.escape, unit)) for unit in form.units), re.DOTALL)


@given(st.lists(st.binary(min_size=6, max_size=40), min_size=1, max_size=6), st.data())
def test_one_search_for_all_finds_what_one_for_each_does(secrets: list[bytes], data: st.DataObject) -> None:
    """Among pieces of echoes, in which beginnings, middles and ends of all forms lie over one another."""
    echoes = [form(secret) for secret in secrets for form in FORMS.values()]
    piece = st.sampled_from(echoes).flatmap(
        lambda echo: st.tuples(st.integers(0, len(echo)), st.integers(0, len(echo))).map(lambda cut: echo[slice(*cut)])
    )
    text = b"".join(data.draw(st.lists(st.one_of(piece, st.sampled_from(echoes), st.binary(max_size=4)), max_size=12)))
    sought = needles(*secrets)
    out, count = overwritten(sought, text)
    spans = [
        found.span() for form in sought.forms for found in _units(form).finditer(text) if any(a.text in found[0] for a in form.anchors)
    ]
    assert (count > 0) == bool(spans)
    assert len(out) == len(text)
    for start, end in spans:
        assert out[start:end].count(b"*") > 0
    for each in secrets:  # and what one of them alone would have changed is changed
        alone, _ = overwritten(needles(each), text)
        assert all(now == one or now == ord("*") for now, one in zip(out, alone, strict=True))


@pytest.mark.parametrize("count", [1, 5, 30])
def test_however_many_are_looked_for_each_is_found(count: int) -> None:
    secrets = [b"sk-%020d" % (number * 7_919) for number in range(count)]
    sought = needles(*secrets)
    for secret in secrets:
        for name, form in FORMS.items():
            assert overwritten(sought, b"x" * 999 + form(secret) + b"y" * 999)[1] >= 1, (secret, name)


def test_a_form_in_mixed_spellings_is_found() -> None:
    secret = b"sk_live_0Pn2DMIKRiIjIpZL+xvLqw/9A"
    for echo in (
        b"sk%5Flive_0Pn2DMIKRiIjIpZL%2bxvLqw\\/9A",
        base64.b64encode(secret).replace(b"+", b"-"),
        b"sk\\u005Flive_0Pn2DMIKRiIjIpZL+xvLqw%2f9A",
    ):
        out, echoes = overwritten(needles(secret), b"<" + echo + b">")
        assert (out, echoes) == (b"<" + b"*" * len(echo) + b">", 1)


def test_what_every_key_of_a_service_begins_with_may_stand_in_a_reply_without_end() -> None:
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    sought = needles(header + b"." + base64.urlsafe_b64encode(b"claims" * 20) + b"." + base64.urlsafe_b64encode(bytes(range(32))))
    assert not any(anchor.text in header for form in sought.forms for anchor in form.anchors)
    assert overwritten(sought, header * 5_000) == (header * 5_000, 0)


def test_what_is_no_echo_passes_untouched_and_at_once() -> None:
    wire = Tripwire(needles(TOKEN))
    for event in (b"data: hello\n\n", b"data: sk_live\n\n", b"", b"\x00" * 70_000, b"data: 1\n\n"):
        assert wire.receive(event) == event
    assert wire.receive(b"data: sk_l") == b"data: "
    assert wire.receive(b"x") == b"sk_lx"
    assert wire.echoes == 0
    assert wire.receive(b"sk_live_") == b""
    assert wire.end() == b"sk_live_"


def test_every_one_of_many_echoes_is_found() -> None:
    sought = needles(TOKEN)
    out, echoes = overwritten(sought, (TOKEN + b"," + TOKEN.hex().encode() + b"\n") * 500)
    assert echoes == 1000
    assert not any(part in out for part in (TOKEN, TOKEN.hex().encode()))


def test_a_secret_that_is_too_short_is_not_looked_for() -> None:
    assert not needles(b"12345")
    assert overwritten(needles(b"12345"), b"12345") == (b"12345", 0)
