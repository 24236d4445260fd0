"""TLS for real: a certificate made by openssl, control as a process with the descriptor that serve hands it, a client that verifies."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from space.config.settings import save_effective
from space.control import http
from space.model.errors import InvalidArgument
from space.sdk import AsyncClient
from space.serve import tls
from space.testing.certificates import certificate
from space.testing.simcontrol import World, dialogue


async def control(world: World, listener: socket.socket, tls_fd: int | None) -> tuple[asyncio.subprocess.Process, int]:
    """The process, and its ready pipe's read end."""
    instance = world.instance
    instance.data.mkdir(parents=True, exist_ok=True)
    (instance.data / "instance.json").write_text(json.dumps({"name": instance.name, "index": instance.index}))
    save_effective(instance, world.settings)
    ready, ready_write = os.pipe()
    more: Iterable[str] = () if tls_fd is None else ("--tls-fd", str(tls_fd))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "space.control.server", "--instance", instance.name,
        "--listen-fd", str(listener.fileno()), "--ready-fd", str(ready_write), *more,
        "--data-root", str(instance.data_root), "--run-root", str(instance.run_root),
        pass_fds=[listener.fileno(), ready_write, *([] if tls_fd is None else [tls_fd])],
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.close(ready_write)
    return process, ready


@dialogue(start=False)
async def test_the_api_is_served_over_tls_and_its_certificate_is_verified(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(world.instance.control_data)
    world.settings = replace(world.settings, tls_certificate=str(cert), tls_key=str(key))
    pem = tls.pem(world.settings)
    assert pem is not None
    descriptor = tls.held(pem)
    key.unlink()  # what its uid cannot read is not wanted either
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        process, ready = await control(world, listener, descriptor)
        os.close(descriptor)
        try:
            said = await asyncio.wait_for(asyncio.to_thread(os.read, ready, 16), 60)
            assert said == b"ready\n", process.stderr and await process.stderr.read()
            trusting = ssl.create_default_context(cafile=str(cert))
            async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
                headers = {"Authorization": f"Bearer {world.key}"}
                made = await client.post(f"{url}/v1/sandboxes", json={}, headers=headers)
                assert (made.status_code, made.json()["phase"]) == (201, "running")
            async with AsyncClient(api_url=url, api_key=world.key) as stranger:
                with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
                    await stranger.health()
        finally:
            os.close(ready)
            process.terminate()
            await asyncio.wait_for(process.communicate(), 30)


@dialogue(start=False)
async def test_a_key_that_control_cannot_use_is_one_sentence_and_no_traceback(world: World) -> None:
    place = world.instance.control_data
    cert, _ = certificate(place)
    world.settings = replace(world.settings, tls_certificate=str(cert), tls_key=str(place / "none.key"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process, ready = await control(world, listener, None)
        os.close(ready)
        _, log = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    lines = [line for line in log.decode().splitlines() if " ERROR " in line]
    assert len(lines) == 1
    assert "the TLS certificate and key cannot be used: No such file or directory" in lines[0]
    assert b"Traceback" not in log


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path)
    _, key = certificate(tmp_path, "other")
    with pytest.raises(InvalidArgument, match=r"cannot be used: .*mismatch"):
        http.config(None, certificate=str(cert), key=str(key))


def test_an_http_address_loads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        pytest.fail("certificates were loaded for nothing")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    AsyncClient(api_url="http://example.com", api_key="k")
    AsyncClient(api_url="http://127.0.0.1:1", api_key="k")
