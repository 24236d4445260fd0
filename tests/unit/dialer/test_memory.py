"""What policies cost the dialer: a thousand sandboxes with fifty rules each, all different, stay below 200 MiB (here a fifth of both)."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from pathlib import Path
from space.core.policy.document import compose, read
from space.dialer.policies import Policies

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def document(number):
    rule = [{"host": f"h{row}.t{number}.example.com", "methods": ["GET"], "paths": [f"/simple/{number}/**"]} for row in range(50)]
    return compose({"operator": {"version": 1, "open": True}, "sandbox": {"version": 1, "rule": rule}})

texts = [document(number) for number in range(200)]
read(texts[0])
policies, before = Policies(), resident()
for number, text in enumerate(texts):
    held = read(text)
    policies.add(held)
    policies.put(f"sb-{number}", 1, held.digest)
assert policies.refusal("sb-7", "h3.t7.example.com", 443) is None
assert policies.refusal("sb-7", "h3.t8.example.com", 443) is not None
print(resident() - before)
"""


def test_policies_of_a_thousand_sandboxes_with_fifty_rules_each_stay_below_200_mib() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert 0 < int(ended.stdout) < 40 << 20
