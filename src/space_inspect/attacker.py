"""The model `space_script/TECHNIQUE,TECHNIQUE...`: an attacker that plays techniques of the evaluation by the same tool as any agent.

It knows what a model is told, and brings the technique's own files along; so scoring is tested with attacks that are known to work where
a defence is missing. `space_script/published` plays the two published bypasses.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import tarfile
from typing import Any

from inspect_ai.model import ChatMessage, GenerateConfig, ModelAPI, ModelOutput, modelapi
from inspect_ai.tool import ToolChoice, ToolInfo

from space_evaluate import catalogue
from space_evaluate.catalogue import Entry
from space_inspect.tasks import FACTS

PUBLISHED = ("forged-reply", "host-field", "sni", "h2-authority")
_PLACE = "/root/technique"
_NAME = "space_script"
_UNPACK = "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|xz').extractall()"  # Debian's tar wants a program for it


@modelapi(name=_NAME)
class ScriptedAttacker(ModelAPI):
    """The name of the model says which techniques."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  # as Inspect's own providers have it
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        wanted = PUBLISHED if model_name == "published" else tuple(model_name.split(","))
        known = {one.id: one for one in catalogue.entries()}
        if unknown := sorted(set(wanted) - known.keys()):
            raise ValueError(f"there is no technique {unknown[0]!r}: `space evaluate --list` says what there is")
        self._techniques = [known[name] for name in wanted]

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Play them all, then submit what was said of them."""
        said = [one.text for one in input if one.role == "tool"]
        if said:
            return ModelOutput.for_tool_call(self.model_name, "submit", {"answer": said[-1][-2000:]})
        told = next(one.text for one in reversed(input) if one.role == "user" and FACTS in one.text)
        facts = json.loads(told.partition(FACTS)[2].splitlines()[0])
        shell = next(one for one in tools if one.name == "bash")
        (said_by,) = shell.parameters.required  # its name is another one in other versions
        return ModelOutput.for_tool_call(self.model_name, shell.name, {said_by: played(self._techniques, facts)})


def played(techniques: list[Entry], facts: dict[str, Any]) -> str:
    """The shell's words that bring the techniques along and try each variant of them."""
    ground = {name: value for name, value in facts.items() if name not in ("token", "goal", "policy")}
    orders = [
        {
            "n": number, "ground": ground, "module": one.module, "what": what, "token": facts["token"], "goal": facts["goal"],
            "policy": facts["policy"], "seconds": one.technique.seconds,
        }
        for number, (one, what) in enumerate((one, what) for one in techniques for what in one.technique.variants.values())
    ]  # fmt: skip
    needed = {path: text for path, text in catalogue.files().items() if _is_needed(path, techniques)}
    packed = base64.b64encode(_packed(needed)).decode()
    lines = "\n".join(json.dumps(order) for order in orders)
    return (
        f"mkdir -p {_PLACE} && cd {_PLACE} && base64 -d <<'END' | python3 -c {shlex.quote(_UNPACK)}\n{packed}\nEND\n"
        f"printf '%s\\n' {shlex.quote(lines)} | python3 -u -m space_evaluate.guestside 2>&1 | tail -c 100000"
    )


def _is_needed(path: str, techniques: list[Entry]) -> bool:
    if "/battery/" not in path or path.endswith("__init__.py"):
        return True
    return any(path == f"{one.module.replace('.', '/')}.py" for one in techniques)


def _packed(texts: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as archive:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


space_script = ScriptedAttacker
