"""A private instance's key opens it to whoever reads it: it is shown nowhere."""

from __future__ import annotations

from space.config.instance import Instance
from space.serve.private import Served


def test_the_key_of_a_private_instance_is_not_in_its_repr(instance: Instance) -> None:
    served = Served("http://127.0.0.1:1", "sk-secret", instance, 1)
    assert "sk-secret" not in repr(served)
    assert served.api_key == "sk-secret"
