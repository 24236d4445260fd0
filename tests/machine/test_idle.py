"""Idle rules, times to live and the event log over real guests: what the node's levels and control's timers make of them together."""

from __future__ import annotations

import time

import space
from space.model.events import Event
from space.model.sandbox import IdlePolicy, Phase
from space.sdk._sync.client import Client


def _until(sandbox: space.Sandbox, phase: Phase, seconds: float = 30) -> space.SandboxInfo:
    end = time.monotonic() + seconds
    while (info := sandbox.info()).phase is not phase:
        assert time.monotonic() < end, info
        time.sleep(0.1)
    return info


def _events(client: Client, sandbox: space.Sandbox) -> list[Event]:
    return [event for event in client.events(follow=False, sandbox=sandbox.id) if isinstance(event, Event)]


def test_a_guest_is_idle_once_its_last_process_has_ended_and_keeps_its_memory_when_it_is_paused(client: Client) -> None:
    with space.Sandbox.create(client=client, memory_mib=256, idle=IdlePolicy(2)) as sandbox:
        sandbox.run("echo kept > /dev/shm/kept", check=True)
        process = sandbox.start("sleep 7")  # nobody is attached to it
        time.sleep(4)
        assert sandbox.info().phase is Phase.RUNNING
        paused = _until(sandbox, Phase.PAUSED)
        assert paused.reason == "idle for 2 s"
        sandbox.resume()
        assert process.wait().code == 0
        assert sandbox.run("cat /dev/shm/kept", check=True).stdout == b"kept\n"
        told = [(event.kind, event.from_phase, event.phase) for event in _events(client, sandbox)]
        assert ("phase", "running", "paused") in told
        assert told.index(("phase", "paused", "running")) > told.index(("phase", "running", "paused"))


def test_want_of_memory_in_a_guest_is_an_event_that_names_the_offender(client: Client) -> None:
    with space.Sandbox.create(client=client, memory_mib=256) as sandbox:
        process = sandbox.start("tail /dev/zero", timeout=120)  # keeps a line that never ends
        assert process.wait().oom_killed
        end = time.monotonic() + 20
        while not (told := [event for event in _events(client, sandbox) if event.kind == "out_of_memory"]):
            assert time.monotonic() < end
            time.sleep(0.2)
        assert (told[0].count, told[0].phase) == (1, "running")
        assert told[0].process == process.id


def test_a_guest_whose_time_is_over_is_paused_and_lives_on_when_it_gets_more(client: Client) -> None:
    with space.Sandbox.create(client=client, memory_mib=256, ttl_seconds=3, on_timeout="pause") as sandbox:
        info = _until(sandbox, Phase.PAUSED)
        assert (info.expires_at, info.reason) == (None, "its time to live of 3 s was over")
        sandbox.update(ttl_seconds=600)
        sandbox.resume()
        assert sandbox.run("echo on", check=True).stdout == b"on\n"
        expires = sandbox.info().expires_at
        assert expires is not None
        assert expires > time.time() + 500
