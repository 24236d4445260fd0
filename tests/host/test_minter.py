"""The real minter among the real services: alone in its namespace, joined to broker and dialer, again whichever of them dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from space.config.settings import Settings
from space.rpc.minter_client import MinterControl
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance


def joined(bare: BareInstance) -> list[str]:
    """The names of its endpoints, once it is joined to both."""

    async def main() -> list[str]:
        control = MinterControl.connect(bare.instance.minter_socket)
        try:
            async with asyncio.timeout(20):
                while not ((standing := await control.describe()).broker and standing.dialer):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                return standing.endpoints
        finally:
            control.close()

    return asyncio.run(main())


def test_the_minter_is_alone_and_is_joined_again_when_it_or_what_it_needs_dies() -> None:
    settings = Settings(accelerator="tcg", warm_templates=0, token_endpoints=("mail=https://auth.example.com/token",))
    with bare_instance(*BESIDE_NODE, "node", settings=settings) as bare:
        assert joined(bare) == ["mail"]
        place = Path("/proc") / str(bare.pid("minter"))
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(bare.instance.minter_uid)}
        assert {int(status[f"Cap{one}"], 16) for one in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert status["NoNewPrivs"].strip() == "1"
        assert len((place / "net/dev").read_text().splitlines()) == 3  # two lines of headings, and lo
        for name in ("broker", "dialer", "minter", "node"):
            bare.kill(name)
            bare.start(name)
            assert joined(bare) == ["mail"], name
