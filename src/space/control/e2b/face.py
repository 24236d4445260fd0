"""What the parts of the face share: tokens, what is known of sandboxes beside our own model, and what a client is told of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from space.control.e2b.envd.memory import Memory
from space.control.e2b.sizes import Sizes
from space.control.e2b.store import ExtrasStore
from space.control.e2b.tokens import Tokens
from space.control.entry import Entry
from space.control.store.store import Store


@dataclass(frozen=True, slots=True)
class Face:
    """Made once by the composition root."""

    tokens: Tokens
    extras: ExtrasStore
    sizes: Sizes
    envd: Memory = field(default_factory=Memory)

    def heed(self, entry: Entry) -> None:
        """Told of every change of a live sandbox: with its end all of this goes."""
        self.extras.heed(entry)
        if entry.record.ended:
            self.envd.forget(entry.record.id)

    @classmethod
    async def load(cls, store: Store) -> Face:
        """Take up what the store holds."""
        extras = ExtrasStore(store)
        await extras.load()
        return cls(await Tokens.load(store), extras, Sizes())
