"""Why a request may go or not, in words; and what changes between two policies. The verdicts are those that the gateway uses."""

from __future__ import annotations

from dataclasses import dataclass

from space.core.policy.model import Policy, Rule
from space.core.policy.verdict import Allow, Asked, Deny, Stack, Verdict

_WORDS = {
    "name_not_allowed": "no rule is for this name",
    "port_not_allowed": "rules are for this name, none for this port",
    "scheme_not_allowed": "the port of this name speaks something else",
    "method_not_allowed": "no rule for this host allows the method",
    "path_not_allowed": "no rule for this host and method allows the path, in every way in which a server may read it",
    "websocket_not_allowed": "the rule does not allow a WebSocket",
    "trace": "the method would send a credential back, and is never let out",
    "address_not_allowed": "no cidr rule is for this address",
    "foreign_credentials": "the rule refuses credentials that the guest brings",
    "no_policy": "there is no policy, so nothing leaves",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """verdict: the whole stack's. lines: a sentence for each layer, then the result."""

    verdict: Verdict
    lines: tuple[str, ...]


def explain(stack: Stack, asked: Asked) -> Explained:
    """What each layer says of a request, and what comes of it."""
    lines = [f"{layer.policy.name}: {_said(layer.request(asked))}" for layer in stack.layers]
    verdict = stack.request(asked)
    return Explained(verdict, (*lines, f"result: {_said(verdict)}"))


def _said(verdict: Verdict) -> str:
    match verdict:
        case Deny(reason, layer, rule):
            return f"denied by {layer}: {_WORDS[reason]}" + (f" (nearest rule: {rule})" if rule else "")
        case Allow(rule=None, recorded=True):
            return "let through and recorded: no rule allows it"
        case Allow(rule=None, ask=True):
            return "asked of a person: no rule allows it"
        case Allow(rule=None):
            return "allowed: the policy is open"
        case Allow(rule=found, ask=ask):
            assert found is not None
            extra = f", with credential {found.grant}" if found.grant else ""
            return f"allowed by rule {found.name} ({found.host}:{found.port} {found.scheme}){extra}" + (
                ", after a person agrees" if ask else ""
            )


@dataclass(frozen=True, slots=True)
class Difference:
    """added, removed: rules by what they say, not by their names. opened, closed: whether `open` changed."""

    added: tuple[Rule, ...]
    removed: tuple[Rule, ...]
    opened: bool
    closed: bool

    @property
    def widens(self) -> bool:
        """Whether something may leave now that could not before (a rule that was changed counts as removed and added)."""
        return self.opened or bool(self.added)


def difference(old: Policy, new: Policy) -> Difference:
    """What `new` allows otherwise than `old`."""
    before, after = {_meaning(rule) for rule in old.rules}, {_meaning(rule) for rule in new.rules}
    return Difference(
        added=tuple(rule for rule in new.rules if _meaning(rule) not in before),
        removed=tuple(rule for rule in old.rules if _meaning(rule) not in after),
        opened=new.open and not old.open,
        closed=old.open and not new.open,
    )


def _meaning(rule: Rule) -> tuple[object, ...]:
    return tuple(getattr(rule, field) for field in Rule.__slots__ if field != "name")
