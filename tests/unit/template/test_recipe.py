"""Recipes: what is read, what is refused and where, and the digests of their steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.template.model import Copy, Download, FromDebian, FromOci, FromTemplate, Ready, Recipe, Run, Write
from space.core.template.plan import InputMissing, Unpack, egresses, layers, template_digest, wants
from space.core.template.recipe import RecipeRefused, load, parse, reference

WHOLE = """
version = 1
name = "numbers"
user = "user"
cwd = "/opt/app"
start = ["python3", "serve.py"]
disk_mib = 4096

[base]
template = "base:latest"

[env]
MODE = "production"

[ready]
run = "test -e /run/ready"
timeout_seconds = 5

[hooks]
10-reseed = "#!/bin/sh\\n"

[[download]]
wheel = "attrs==25.3.0"

[[download]]
file = "https://example.com/a/model.bin?x=1"
sha256 = "%s"

[[step]]
run = "pip install attrs"
user = "root"

[[step]]
copy = "./app//src"
to = "/opt/app"
owner = "user"

[[step]]
write = "hello"
to = "/etc/motd"
mode = "0600"
""" % ("a" * 64)


def test_whole_recipe_is_read() -> None:
    recipe = parse(WHOLE)
    assert recipe.base == FromTemplate("base:latest")
    assert recipe.steps == (
        Run(("/bin/sh", "-ec", "pip install attrs"), "root"),
        Copy("app/src", "/opt/app", "user"),
        Write("/etc/motd", "hello", 0o600),
    )
    assert recipe.downloads == (
        Download("wheel", "attrs==25.3.0"),
        Download("file", "https://example.com/a/model.bin?x=1", "a" * 64, "model.bin"),
    )
    assert recipe.settings.start == ("python3", "serve.py")
    assert recipe.settings.ready == Ready(("/bin/sh", "-ec", "test -e /run/ready"), 5)
    assert wants(recipe) == ("app/src",)


def test_other_bases() -> None:
    assert load({"version": 1, "base": {"debian": ["git", "curl", "git"]}}).base == FromDebian(("curl", "git"))
    image = load({"version": 1, "base": {"oci": "image.tar", "image": "app:1"}})
    assert image.base == FromOci("image.tar", "app:1")
    assert wants(image) == ("image.tar",)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"surprise": 1}, "surprise"),
        ({"base": {}}, "base"),
        ({"base": None}, "base"),
        ({"base": {"template": "base", "oci": "x"}}, "base"),
        ({"base": {"template": "../base"}}, "base.template"),
        ({"base": {"template": "base", "image": "x"}}, "base.image"),
        ({"base": {"debian": []}}, "base.debian"),
        ({"base": {"debian": ["--purge"]}}, "base.debian[0]"),
        ({"base": {"oci": "/etc"}}, "base.oci"),
        ({"base": {"oci": "a/../../b"}}, "base.oci"),
        ({"step": {"run": "x"}}, "step"),
        ({"step": [{"run": ""}]}, "step[0].run"),
        ({"step": [{"run": ["a", 1]}]}, "step[0].run[1]"),
        ({"step": [{"run": ["a\0"]}]}, "step[0].run[0]"),
        ({"step": [{"run": "a", "copy": "b"}]}, "step[0]"),
        ({"step": [{"run": "a", "to": "/b"}]}, "step[0].to"),
        ({"step": [{"run": "a", "cwd": "b"}]}, "step[0].cwd"),
        ({"step": [{"run": "a", "user": "a b"}]}, "step[0].user"),
        ({"step": [{"run": "a", "env": {"A=B": "c"}}]}, "step[0].env"),
        ({"step": [{"run": "a", "timeout_seconds": 0}]}, "step[0].timeout_seconds"),
        ({"step": [{"run": "a", "egress": ""}]}, "step[0].egress"),
        ({"step": [{"run": "a", "egress": "A/b"}]}, "step[0].egress"),
        ({"step": [{"run": "a", "egress": True}]}, "step[0].egress"),
        ({"step": [{"run": "a", "egress": {"version": object()}}]}, "step[0].egress"),
        ({"step": [{"copy": "a", "to": "/b", "egress": "x"}]}, "step[0].egress"),
        ({"step": [{"copy": "a"}]}, "step[0].to"),
        ({"step": [{"copy": "../a", "to": "/a"}]}, "step[0].copy"),
        ({"step": [{"copy": "a", "to": "/a/../b"}]}, "step[0].to"),
        ({"step": [{"write": "a", "to": "/a", "mode": "4755"}]}, "step[0].mode"),
        ({"download": [{"wheel": "attrs"}]}, "download[0].wheel"),
        ({"download": [{"wheel": "--index-url==1"}]}, "download[0].wheel"),
        ({"download": [{"npm": "left-pad"}]}, "download[0].npm"),
        ({"download": [{"deb": "-o=x"}]}, "download[0].deb"),
        ({"download": [{"file": "http://example.com/x", "sha256": "a" * 64}]}, "download[0].file"),
        ({"download": [{"file": "https://example.com/x"}]}, "download[0].sha256"),
        ({"download": [{"file": "https://example.com/", "sha256": "a" * 64}]}, "download[0].name"),
        ({"hooks": {"../x": ""}}, "hooks"),
        ({"disk_mib": 1}, "disk_mib"),
        ({"env": {"A": 1}}, "env.A"),
        ({"ready": {"run": "x", "every": 1}}, "ready.every"),
        ({"start": []}, "start"),
        ({"name": "A"}, "name"),
    ],
)
def test_mistake_is_refused_with_its_path(change: dict[str, object], path: str) -> None:
    with pytest.raises(RecipeRefused) as refused:
        load({"version": 1, "base": {"template": "base"}} | change)
    assert [note.path for note in refused.value.notes][:1] == [path]


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(RecipeRefused) as refused:
        load({"version": 1, "base": {"template": "base"}, "step": [{"run": ""}, {"copy": "/x", "to": "y"}], "other": 1})
    assert {note.path for note in refused.value.notes} == {"other", "step[0].run", "step[1].copy", "step[1].to"}


def test_text_that_is_no_recipe_is_refused() -> None:
    for text in ("[", "a = 1\na = 2", "x" * (300 << 10), "\ud800"):
        with pytest.raises(RecipeRefused):
            parse(text)


def test_references() -> None:
    assert reference("base") == ("base", "latest")
    assert reference("base:V1") == ("base", "V1")
    for wrong in ("", "a:", ":a", "a/b", "a:b:c", "a b", "-a", "a\n"):
        with pytest.raises(ValueError, match="not a template"):
            reference(wrong)


_LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_ANY = (
    _LEAF | st.lists(_LEAF, max_size=3) | st.dictionaries(st.sampled_from(["run", "copy", "write", "to", "wheel", "x"]), _LEAF, max_size=3)
)
_KNOWN = ("version", "name", "base", "download", "step", "env", "user", "cwd", "start", "ready", "hooks", "disk_mib", "memory_mib")


def _read(data: dict[str, object]) -> Recipe | RecipeRefused:
    try:
        return load(data)
    except RecipeRefused as refused:
        return refused


@given(st.dictionaries(st.sampled_from([*_KNOWN, "other"]), _ANY | st.lists(_ANY, max_size=3), max_size=6))
def test_any_data_is_read_or_refused(data: dict[str, object]) -> None:
    match _read(data):
        case RecipeRefused(notes=notes):
            assert notes
            assert all(note.path and note.message for note in notes)
        case Recipe() as recipe:
            assert data["version"] == 1
            assert set(data) <= set(_KNOWN)
            assert layers(recipe, "b", dict.fromkeys(wants(recipe), "x")) is not None


_STEPS = st.lists(
    st.one_of(
        st.builds(lambda text: Run((text,)), st.text(min_size=1, max_size=5)),
        st.builds(lambda text: Write("/a", text), st.text(max_size=5)),
        st.just(Copy("app", "/app")),
    ),
    max_size=6,
).map(tuple)


@given(_STEPS, _STEPS)
def test_equal_histories_have_equal_digests_and_no_others(one: tuple[Run, ...], other: tuple[Run, ...]) -> None:
    inputs = {"app": "1"}
    first, second = (layers(Recipe(FromTemplate("base"), steps), "b", inputs) for steps in (one, other))
    for number, (left, right) in enumerate(zip(first, second, strict=False)):
        assert (left.digest == right.digest) == (one[: number + 1] == other[: number + 1])


def test_what_goes_into_a_step_is_in_its_digest() -> None:
    recipe = Recipe(FromTemplate("base"), (Copy("app", "/app"), Run(("true",))), hooks={"a": "x"})
    plain = layers(recipe, "b", {"app": "1"})
    assert [layer.title for layer in plain] == ["copy app to /app", "run true", "write /etc/space/restore.d/a"]
    others = [
        layers(recipe, "c", {"app": "1"}),
        layers(recipe, "b", {"app": "2"}),
        layers(recipe, "b", {"app": "1"}, "downloads"),
        layers(recipe, "b", {"app": "1"}, salt="tenant"),
        layers(replace(recipe, disk_mib=4096), "b", {"app": "1"}),
        layers(replace(recipe, settings=replace(recipe.settings, env={"A": "1"})), "b", {"app": "1"}),
    ]
    for other in others:
        assert not {layer.digest for layer in plain} & {layer.digest for layer in other}
    started = replace(recipe, settings=replace(recipe.settings, start=("x",)))
    assert layers(started, "b", {"app": "1"}) == plain
    assert template_digest(plain[-1].digest, {"start": ["x"]}) != template_digest(plain[-1].digest, {})


def test_a_step_under_another_policy_is_another_step_and_one_without_is_as_it_was() -> None:
    policy = {"version": 1, "allow": [{"host": "a.example.com"}]}
    steps = [{"run": "true"}, {"run": "fetch", "egress": "mirrors"}, {"run": "fetch", "egress": policy}]
    recipe = load({"version": 1, "base": {"template": "base"}, "step": steps})
    first, second = egresses(recipe)
    assert (first, json.loads(second)) == ('"mirrors"', policy)
    with pytest.raises(InputMissing, match="mirrors"):
        layers(recipe, "b", {})
    one, other = (layers(recipe, "b", {}, policies={first: digest, second: "2"}) for digest in ("1", "x"))
    assert one[0] == other[0] == layers(replace(recipe, steps=recipe.steps[:1]), "b", {})[0]
    assert not {layer.digest for layer in one[1:]} & {layer.digest for layer in other[1:]}


def test_what_did_not_come_is_named() -> None:
    with pytest.raises(InputMissing, match="app"):
        layers(Recipe(FromTemplate("base"), (Copy("app", "/app"),)), "b", {})


def test_image_is_the_first_step() -> None:
    recipe = Recipe(FromOci("image.tar"), (Run(("true",)),))
    assert layers(recipe, "empty", {"image.tar": "1"})[0].action == Unpack("image.tar", "")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[3] / "templates").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipe_is_right(path: Path) -> None:
    recipe = parse(path.read_text())
    assert recipe.name == path.stem
    assert recipe.steps
