"""The lab's machine: what has to be the same where it is saved and where it is restored, and what must not leak out of it."""

from __future__ import annotations

from pathlib import Path

from space.lab import plan

_FILES = plan.Files(*(Path(f"/lab/{name}") for name in ("run", "kernel", "initramfs", "memory", "root", "data", "source")))


def test_a_restored_machine_has_the_devices_of_the_saved_one() -> None:
    saved, restored = plan.argv(_FILES, 2_445_424, saved=False), plan.argv(_FILES, 2_445_424, saved=True)
    assert [word for word in saved if word == "-device"] == [word for word in restored if word == "-device"]
    told = [(one, other) for one, other in zip(saved, restored, strict=False) if one != other]
    assert [one for one, _ in told] == [
        "memory-backend-file,id=ram,size=2560M,mem-path=/lab/memory,share=on",
        "file=/lab/root,if=none,id=root,format=raw,snapshot=off",
    ]
    assert restored[-2:] == ["-incoming", "defer"]


def test_what_a_restored_machine_writes_is_its_own() -> None:
    restored = plan.argv(_FILES, 1, saved=True)
    drives = [word for word in restored if word.startswith("file=/lab/")]
    assert len(drives) == 3
    assert all(word.endswith("snapshot=on") for word in drives)
    assert any("mem-path=/lab/memory,share=off" in word for word in restored)


def test_it_has_no_network() -> None:
    assert not any("net" in word for word in plan.argv(_FILES, 1, saved=True))


def test_its_clock_is_this_processors() -> None:
    words = plan.argv(_FILES, 2_000_000, saved=True)
    kernel = words[words.index("-append") + 1].split()
    assert {"tsc_early_khz=2000000", "lpj=8000000", "tsc=reliable"} <= set(kernel)
