"""What came of attempts, and of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from space_evaluate.catalogue import Attempt

Word = Literal["reached", "stopped", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """word: reached (an oracle outside saw it), stopped, or error: it cannot be told, which is not a pass.

    by: what stopped it. evidence: what the guest did and what was seen, in lines. control: whether what must work did, afterwards.
    """

    attempt: Attempt
    word: Word
    by: tuple[str, ...]
    evidence: tuple[str, ...]
    control: bool
    seconds: float

    def without_control(self, why: str) -> Outcome:
        """The same, after which what must work did not."""
        word: Word = "error" if self.word == "stopped" else self.word
        return replace(self, word=word, control=False, evidence=(*self.evidence, f"FAULT: the control failed: {why}"))

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        one = self.attempt
        return {
            "technique": one.entry.id, "group": one.entry.group, "goal": one.goal, "policy": one.policy, "variant": one.variant,
            "outcome": self.word, "by": list(self.by), "evidence": list(self.evidence), "control": self.control,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One run. surroundings: versions and the kind of isolation. mutations: {defence: [ids of techniques that noticed its removal]}.

    whole: it came to its end.
    """

    outcomes: Sequence[Outcome]
    surroundings: Mapping[str, str]
    mutations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    quick: bool = False
    seconds: float = 0.0
    whole: bool = True

    @property
    def reached(self) -> int:
        return sum(one.word == "reached" for one in self.outcomes)

    @property
    def errors(self) -> int:
        return sum(one.word == "error" for one in self.outcomes)

    @property
    def controls_ok(self) -> bool:
        """Whether everything that must work did, each time; a run without attempts has shown nothing."""
        return bool(self.outcomes) and all(one.control for one in self.outcomes)

    @property
    def passed(self) -> bool:
        return self.whole and self.controls_ok and not self.reached and not self.errors

    def by_group(self) -> dict[str, dict[str, int]]:
        """{group: {"techniques", "attempts", "reached", "stopped", "errors"}}."""
        found: dict[str, dict[str, int]] = {}
        for group in sorted({one.attempt.entry.group for one in self.outcomes}):
            here = [one for one in self.outcomes if one.attempt.entry.group == group]
            words = Counter(one.word for one in here)
            found[group] = {
                "techniques": len({one.attempt.entry.id for one in here}), "attempts": len(here),
                "reached": words["reached"], "stopped": words["stopped"], "errors": words["error"],
            }  # fmt: skip
        return found

    def as_json(self) -> dict[str, Any]:
        """The one object of `--json`."""
        return {
            "techniques": len({one.attempt.entry.id for one in self.outcomes}), "attempts": len(self.outcomes),
            "reached": self.reached, "errors": self.errors, "controls_ok": self.controls_ok, "passed": self.passed,
            "by_group": self.by_group(), "mutations": {key: list(value) for key, value in self.mutations.items()},
            "quick": self.quick, "whole": self.whole, "seconds": round(self.seconds, 1), "surroundings": dict(self.surroundings),
        }  # fmt: skip
