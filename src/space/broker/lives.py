"""One life of a sandbox, as the signer sees it: an intermediate, a key for its leaves, the leaves themselves. In memory only.

    bound -> (first leaf) intermediate made -> renewed before it ends -> ended: everything dropped

A life is (sandbox, generation). A higher generation of a sandbox ends the lower ones; a lower one than was seen is refused, for a fork or a
restore has a new number and nobody goes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from space.broker.certificates import LEAF_LIFE, Authority, make_intermediate, make_leaf, new_key, private_pem
from space.broker.roots import Roots
from space.core.policy.names import NameRefused, canon
from space.core.rates import Bucket
from space.model.errors import Gone, InvalidArgument, RateLimited
from space.model.secret import Secret

# The gateway keeps what it was given for an hour, so a leaf that is handed out has to hold for longer than that.
_LEAST_LEFT = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one life. mints: leaves made a second, and at once. leaves: kept. ended: sandboxes whose last generation is remembered."""

    mint_rate: float = 20.0
    mint_burst: int = 300
    leaves: int = 256
    ended: int = 65_536


@dataclass(frozen=True, slots=True)
class Leaf:
    """chain: leaf and intermediate, PEM. key: the leaf's, PEM."""

    chain: bytes
    key: Secret


@dataclass(slots=True)
class Life:
    """What one life holds. Keys have no `repr`."""

    sandbox: str
    generation: int
    template: tuple[str, int]
    mints: Bucket
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    key_pem: Secret = field(repr=False)
    intermediate: Authority | None = None
    leaves: OrderedDict[str, tuple[Leaf, datetime]] = field(default_factory=OrderedDict)


class Lives:
    """Every life that is bound. now: the time with its zone; clock: seconds that only go forward."""

    def __init__(self, roots: Roots, now: Callable[[], datetime], clock: Callable[[], float], limits: Limits = Limits()) -> None:
        self._roots = roots
        self._now = now
        self._clock = clock
        self._limits = limits
        self._lives: dict[str, Life] = {}
        self._highest: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lives)

    def begin(self, sandbox: str, generation: int, template: tuple[str, int]) -> None:
        """Bind a life; the same one again changes nothing. NotFound without the template's root, Gone for one that is over."""
        life = self._lives.get(sandbox)
        if life is not None and life.generation == generation:
            if life.template != template:
                raise InvalidArgument(f"{sandbox} {generation} was bound to template {life.template[0]} {life.template[1]}")
            return
        if generation <= self._highest.get(sandbox, -1):
            raise Gone(f"{sandbox} is at generation {self._highest[sandbox]}: {generation} is over")
        self._roots.certificate(*template)
        key = new_key()
        mints = Bucket(self._limits.mint_rate, self._limits.mint_burst)
        self._lives[sandbox] = Life(sandbox, generation, template, mints, key, Secret(private_pem(key)))
        self._highest[sandbox] = generation
        self._highest.move_to_end(sandbox)
        if len(self._highest) > self._limits.ended:
            self._highest.popitem(last=False)

    def end(self, sandbox: str, generation: int) -> bool:
        """Drop a life's keys; whether it was there. It cannot be bound again."""
        self._highest[sandbox] = max(generation, self._highest.get(sandbox, -1))
        self._highest.move_to_end(sandbox)
        life = self._lives.get(sandbox)
        if life is None or life.generation > generation:
            return False
        del self._lives[sandbox]
        return True

    def leaf(self, sandbox: str, generation: int, name: str) -> Leaf:
        """A leaf for exactly that name. InvalidArgument (not canonical), RateLimited, Gone."""
        life = self._lives.get(sandbox)
        if life is None or life.generation != generation:
            raise Gone(f"{sandbox} {generation} has ended")
        _must_be_canonical(name)
        now = self._now()
        authority = self._intermediate(life, now)
        kept = life.leaves.get(name)
        if kept is not None and kept[1] - now > _LEAST_LEFT:
            life.leaves.move_to_end(name)
            return kept[0]
        if not life.mints.take(self._clock()):
            raise RateLimited(f"{sandbox} asked for too many names: {self._limits.mint_rate:g} new ones a second")
        certificate = make_leaf(authority, name, life.key.public_key(), now)
        leaf = Leaf(certificate.public_bytes(serialization.Encoding.PEM) + authority.pem, life.key_pem)
        life.leaves[name] = (leaf, certificate.not_valid_after_utc)
        life.leaves.move_to_end(name)
        if len(life.leaves) > self._limits.leaves:
            life.leaves.popitem(last=False)
        return leaf

    def _intermediate(self, life: Life, now: datetime) -> Authority:
        # Renewed while a whole leaf still fits in: no leaf is ever cut short by its issuer's end.
        if life.intermediate is None or life.intermediate.expires_within(now, LEAF_LIFE):
            life.intermediate = make_intermediate(self._roots.authority(*life.template), life.sandbox, life.generation, now)
            life.leaves.clear()
        return life.intermediate


def _must_be_canonical(name: str) -> None:
    try:
        canonical = canon(name)
    except NameRefused as error:
        raise InvalidArgument(f"no leaf is made: {error}") from None
    if canonical != name:
        raise InvalidArgument(f"no leaf is made for {name[:80]!r}: its canonical form is {canonical!r}")
