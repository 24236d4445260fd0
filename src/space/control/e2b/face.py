"""What the parts of the face share: tokens, what is known of sandboxes beside our own model, and what a client is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from space.config.settings import Settings
from space.control.e2b import images
from space.control.e2b.archives import Archives
from space.control.e2b.building import Building
from space.control.e2b.envd.memory import Memory
from space.control.e2b.sizes import Sizes
from space.control.e2b.snapshots import Snapshots
from space.control.e2b.store import ExtrasStore
from space.control.e2b.tokens import Tokens
from space.control.entry import Entry
from space.control.store.store import Store


@dataclass(frozen=True, slots=True)
class Face:
    """Made once by the composition root. images: templates that stand for container images."""

    tokens: Tokens
    extras: ExtrasStore
    sizes: Sizes
    building: Building
    snapshots: Snapshots
    images: Mapping[str, str]
    envd: Memory = field(default_factory=Memory)

    def heed(self, entry: Entry) -> None:
        """Told of every change of a live sandbox: with its end all of this goes."""
        self.extras.heed(entry)
        if entry.record.ended:
            self.envd.forget(entry.record.id)

    @classmethod
    async def load(cls, store: Store, place: Path, settings: Settings) -> Face:
        """Take up what the store holds. place: of archives that are uploaded for builds."""
        extras, archives = ExtrasStore(store), Archives(place)
        await extras.load()
        await asyncio.to_thread(archives.sweep)
        building = Building(store, archives)
        await building.load()
        found = images.load(settings.e2b_images)
        return cls(await Tokens.load(store), extras, Sizes(building.sizes), building, Snapshots(extras, building), found)
