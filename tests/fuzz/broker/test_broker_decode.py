"""What the broker is sent: a question with every value in range, or nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from space.rpc import broker_api as api

_TYPES = [
    "MakeRoot",
    "BindSandbox",
    "EndSandbox",
    "BindWriter",
    "HeadKey",
    "GetHead",
    "AskLeaf",
    "AskCredential",
    "AskGrants",
    "Vouch",
    "PutSecret",
    "GetSecret",
    "ListSecrets",
    "RevokeSecret",
    "DeleteSecret",
    "PutGrant",
    "ListGrants",
    "RevokeGrant",
    "AttachGrants",
    "x",
]
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(_TYPES),
    "id": st.integers(-1, 1 << 60),
    "sandbox": st.from_regex(r"sb-[a-z2-7]{20}\n?", fullmatch=True) | st.text(max_size=30),
    "template": st.from_regex(r"[a-z0-9][a-z0-9._-]{0,5}", fullmatch=True) | st.text(max_size=70),
    "generation": st.integers(-2, (1 << 64) - 1),
    "template_generation": st.integers(-2, (1 << 64) - 1),
    "writers": st.lists(st.text(max_size=3), max_size=10),
    "writer": st.sampled_from(["gateway", "Gateway", "gateway\n", ""]),
    "what": st.sampled_from(["head", "base", "tail"]),
    "name": st.text(max_size=300),
    "count": st.integers(-1, (1 << 64) - 1),
    "last": st.binary(min_size=30, max_size=34),
    "tenant": st.from_regex(r"[a-z0-9][a-z0-9._-]{0,5}\n?", fullmatch=True) | st.text(max_size=70),
    "kind": st.sampled_from(["static", "aws", "oauth_refresh", "paper"]),
    "value": st.binary(max_size=20),
    "public": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=9),
    "labels": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3) | st.lists(st.text(max_size=2)),
    "expires": st.text(max_size=45),
    "mode": st.sampled_from(["new", "rotate", "either", "any"]),
    "grant": st.binary(max_size=30) | st.text(max_size=70),
    "names": st.lists(st.from_regex(r"[a-z]{1,3}\n?", fullmatch=True), max_size=66),
    "host": st.text(max_size=260),
    "port": st.integers(-1, 70_000),
    "method": st.text(max_size=40),
    "path": st.text(max_size=30),
    "limit": st.integers(-1, 100),
    "after": st.text(max_size=70),
}


@settings(max_examples=400)
@given(st.sampled_from([api.CONTROL, api.SANDBOX, api.WRITER]), st.fixed_dictionaries({}, optional=_VALUES) | st.binary(max_size=200))
def test_arbitrary_messages_are_questions_in_range_or_refused(decoder: Any, message: dict[str, Any] | bytes) -> None:
    data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    try:
        question = decoder.decode(data)
    except msgspec.MsgspecError:
        return
    assert 1 <= question.id < 1 << 53
    assert len(getattr(question, "sandbox", "x" * 23)) in (1, 23)
    assert 0 <= getattr(question, "generation", 0) < 1 << 63
    assert len(getattr(question, "last", bytes(32))) == 32
    assert 1 <= getattr(question, "port", 1) <= 65_535
    assert 1 <= getattr(question, "limit", 1) <= api.PAGE
    assert "\n" not in getattr(question, "tenant", "") + "".join(getattr(question, "names", ()))
    assert "\n" not in getattr(question, "writer", "") + getattr(question, "sandbox", "") + getattr(question, "template", "")
    assert decoder.decode(api.encode(question)) == question
