"""The child that copies a snapshot, and the node that it waits for."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from space.rootd import taking


def _hung_up_at_once(node: socket.socket) -> None:
    node.close()


def _hung_up_when_ready(node: socket.socket) -> None:
    node.shutdown(socket.SHUT_WR)


def _said_something_else(node: socket.socket) -> None:
    node.send(b"no")


@pytest.mark.parametrize("end", [_hung_up_at_once, _hung_up_when_ready, _said_something_else])
def test_a_node_that_does_not_say_go_is_one_that_hung_up(end: Callable[[socket.socket], None]) -> None:
    ours, node = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, node:
        end(node)
        with pytest.raises(taking._HungUp):
            taking._until_wanted(ours)


def test_a_node_that_hangs_up_without_reading_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, node = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def say(talk: socket.socket, **_: object) -> None:
        talk.send(b"unread")  # what makes the end a reset
        node.close()

    monkeypatch.setattr(taking, "_say", say)
    with ours, pytest.raises(taking._HungUp):
        taking._until_wanted(ours)


def test_go_is_go() -> None:
    ours, node = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, node:
        node.send(b"go")
        taking._until_wanted(ours)
        assert json.loads(node.recv(100)) == {"step": "ready"}
