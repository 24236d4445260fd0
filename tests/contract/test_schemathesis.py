"""Schemathesis against the API: what its document allows, and what it does not, over a simulated node and over a real guest.

No request is an error of the server's, every answer is one that the document has, in its media type and schema, wrong data is refused,
and no route is there without its key. `full` makes many more requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings, strategies
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig

from space.control import bundles, trees
from space.control.openapi import document
from space.model import frames
from space.testing import machine

# A schema cannot say everything that we refuse: a NUL, a relative cwd, a name that is no signal's. And wrong keys from one address are
# soon 429: that every route needs its key is a test of its own, over the table of routes.
load_all_checks()
_NOT_OURS: list[Any] = [CHECKS.get_one(name) for name in ("positive_data_acceptance", "ignored_auth")]
# An answer that has no end by itself, asked so that it has one; the others have it without `follow`.
_ENDLESS: dict[str, dict[str, Any]] = {"watch_files": {"path": "missing"}}
# What changes a sandbox that others use gets one of its own.
_OF_ITS_OWN = ("delete_sandbox", "pause_sandbox", "resume_sandbox", "update_sandbox")


# Bytes of formats that it does not know: mostly none of their kind.
for _media_type in (trees.MEDIA_TYPE, frames.PROCESS_MEDIA_TYPE, bundles.MEDIA_TYPE):
    schemathesis.openapi.media_type(_media_type, strategies.binary(max_size=2000))


def _schema(examples: int) -> Any:
    generation = {"max-examples": examples, "deterministic": True, "no-shrink": True}
    config = SchemathesisConfig.from_dict({"generation": generation, "phases": {"coverage": {"enabled": examples > 100}}})
    return schemathesis.openapi.from_dict(json.loads(document("0.0.0")), config=config)


FEW, MANY = _schema(20), _schema(200)


@dataclass
class Place:
    """A server, and things of it."""

    url: str
    key: str
    cheap: bool  # sandboxes cost nothing
    sandbox: str = ""
    victim: str | None = None  # of this case alone
    built: str | None = None  # likewise
    process: str = ""
    client: httpx.Client = field(default_factory=httpx.Client)

    def __post_init__(self) -> None:
        head = {"Authorization": f"Bearer {self.key}"}
        self.client = httpx.Client(base_url=self.url, headers=head, timeout=120, trust_env=False)
        self.sandbox = self.create()
        self.process = self.client.post(f"/v1/sandboxes/{self.sandbox}/processes", json={"argv": ["sleep", "3600"]}).json()["id"]

    def build(self) -> str:
        """A build that waits for its files."""
        recipe = 'version = 1\nname = "mine"\n[base]\ntemplate = "base"\n'
        answer = self.client.post("/v1/builds", json={"recipe": recipe})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def create(self) -> str:
        answer = self.client.post("/v1/sandboxes")
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def close(self) -> None:
        for one in self.client.get("/v1/sandboxes").json()["sandboxes"]:
            self.client.delete(f"/v1/sandboxes/{one['id']}")
        self.client.close()


@pytest.fixture(scope="module")
def simulated() -> Iterator[Place]:
    """control with a SimNode."""
    command = [sys.executable, "-m", "space.testing.simserver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        place = Place(told["url"], told["key"], cheap=True)
        yield place
        place.close()
        server.communicate(timeout=30)
    assert server.returncode == 0


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A private instance with a real guest."""
    runtime = machine.find_runtime(request.config.getoption("--runtime"))
    log: Path = tmp_path_factory.mktemp("serve") / "serve.log"
    with machine.private(runtime, log) as served:
        place = Place(served.url, served.api_key, cheap=False)
        yield place
        place.close()


def _aim(case: Case[Any], place: Place) -> None:
    """Most requests are of things that are there."""
    name = case.operation.definition.raw["operationId"]
    parameters, query = case.path_parameters or {}, case.query if isinstance(case.query, dict) else {}
    chance = len(str(parameters)) % 4
    if "id" in parameters and chance:
        own = name in _OF_ITS_OWN
        if own and place.cheap:
            parameters["id"] = place.victim = place.create()
        elif not own:
            parameters["id"] = place.sandbox
    if "build" in parameters and chance:
        parameters["build"] = place.built = place.build()
    if "/templates/{name}" in case.operation.path and chance and case.method == "GET":
        parameters["name"] = "base"
        query.pop("tag", None)
    if "process" in parameters and chance and name != "delete_process":
        parameters["process"] = place.process
    query.update(_ENDLESS.get(name, {}))
    follows = any(each.get("name") == "follow" for each in case.operation.definition.raw.get("parameters", ()))
    if follows and "/files" not in case.operation.path:  # of a file it is whether a link is followed
        query["follow"] = False
    if (
        isinstance(case.body, dict)
        and "argv" in case.body
        and case.meta is not None
        and case.meta.generation.mode is GenerationMode.POSITIVE
    ):
        case.body["argv"] = ["true"]


def _ask(case: Case[Any], place: Place) -> None:
    _aim(case, place)
    name = case.operation.definition.raw["operationId"]
    if not place.cheap and name == "create_sandbox":
        return  # a boot for each would take the day, and a size that the machine does not have is a 503
    answer = case.call(base_url=place.url, headers={"Authorization": f"Bearer {place.key}"}, timeout=60)
    # 413 is a refusal as well: a value that is longer than may be can make a body longer than may be
    accepted: list[Any] = [CHECKS.get_one("negative_data_rejection")] if answer.status_code == 413 else []
    case.validate_response(answer, excluded_checks=[*_NOT_OURS, *accepted])
    if place.victim is not None:
        place.client.delete(f"/v1/sandboxes/{place.victim}")
        place.victim = None
    if place.built is not None:
        place.client.delete(f"/v1/builds/{place.built}")
        place.built = None
    if name == "create_build" and answer.status_code == 201:
        place.client.delete(f"/v1/builds/{answer.json()['id']}")
    if name == "create_sandbox" and answer.status_code in (201, 202):
        place.client.delete(f"/v1/sandboxes/{answer.json()['id']}")


_RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@FEW.parametrize()  # type: ignore[untyped-decorator]
@_RELAXED
def test_the_api_answers_as_its_document_says(case: Case[Any], simulated: Place) -> None:
    _ask(case, simulated)


@pytest.mark.full
@MANY.parametrize()  # type: ignore[untyped-decorator]
@_RELAXED
def test_the_api_answers_as_its_document_says_many_times(case: Case[Any], simulated: Place) -> None:
    _ask(case, simulated)


@pytest.mark.machine
@FEW.parametrize()  # type: ignore[untyped-decorator]
@_RELAXED
def test_the_api_answers_as_its_document_says_with_a_real_guest(case: Case[Any], real: Place) -> None:
    _ask(case, real)
