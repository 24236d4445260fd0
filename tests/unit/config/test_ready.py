"""A service goes on when the serve that started it dies before it is ready."""

from __future__ import annotations

import os

import pytest

from space.config.ready import say_ready


def test_a_serve_that_is_gone_is_no_reason_to_end() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    say_ready(writer)
    with pytest.raises(OSError, match="Bad file"):
        os.close(writer)


def test_the_line_is_written_and_the_pipe_closed() -> None:
    reader, writer = os.pipe()
    say_ready(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"ready\n"
    say_ready(None)
