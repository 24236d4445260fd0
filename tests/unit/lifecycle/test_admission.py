"""Admission keeps within the machine, is first come first served, and loses nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from space.core.lifecycle.admission import Admission, Capacity, NoRoom
from space.core.plan.machine import VMM_OVERHEAD_MIB

BIG = Capacity(memory_mib=100_000, sandboxes=100, boots=2, queue=3)


def ask(admission: Admission, *names: str) -> Admission:
    for name in names:
        asked = admission.ask(name, 512)
        assert isinstance(asked, Admission)
        admission = asked
    return admission


def test_boots_beyond_the_limit_wait_in_order() -> None:
    admission = ask(Admission(BIG), "a", "b", "c", "d")
    assert (admission.booting, admission.waiting) == (frozenset("ab"), ("c", "d"))
    admission = admission.booted("b")
    assert (admission.booting, admission.waiting) == (frozenset("ac"), ("d",))


def test_a_full_queue_refuses_at_once() -> None:
    admission = ask(Admission(BIG), *"abcde")
    refused = admission.ask("f", 512)
    assert refused == NoRoom("2 sandboxes boot and 3 wait for it", "try again in a few seconds")


def test_memory_that_is_not_free_refuses_at_once_with_values() -> None:
    admission = ask(Admission(Capacity(memory_mib=1000, sandboxes=9, boots=9, queue=9)), "a")
    refused = admission.ask("b", 512)
    assert isinstance(refused, NoRoom)
    assert (
        refused.why == f"it needs {512 + VMM_OVERHEAD_MIB} MiB (512 for the guest) and {1000 - 512 - VMM_OVERHEAD_MIB} of 1000 MiB are free"
    )


def test_disk_that_is_kept_for_what_is_there_refuses_at_once_with_values() -> None:
    admission = Admission(Capacity(memory_mib=10_000, sandboxes=5, boots=2, queue=3, disk_reserve_mib=512))
    refused = admission.ask("a", 128, 511)
    assert isinstance(refused, NoRoom)
    assert refused.why == "the data directory has 511 MiB free, and the last 512 MiB are kept for what is there"
    assert "space prune" in refused.hint
    assert isinstance(admission.ask("a", 128, 512), Admission)
    assert isinstance(admission.ask("a", 128), Admission)


def test_as_many_sandboxes_as_may_be() -> None:
    admission = ask(Admission(Capacity(memory_mib=10_000, sandboxes=1, boots=1, queue=1)), "a")
    assert isinstance(admission.ask("b", 1), NoRoom)
    assert isinstance(admission.left("a").ask("b", 1), Admission)


def test_one_that_waits_and_leaves_frees_its_place() -> None:
    admission = ask(Admission(BIG), *"abcde").left("d")
    assert admission.waiting == ("c", "e")
    assert admission.booted("a").booting == {"b", "c"}


def test_asking_again_changes_nothing() -> None:
    admission = ask(Admission(BIG), "a", "b", "c")
    assert admission.ask("c", 512) is admission


@given(st.lists(st.tuples(st.sampled_from(["ask", "booted", "left"]), st.sampled_from("abcdefgh"), st.integers(1, 900))))
def test_no_history_passes_a_limit_or_loses_anybody(history: list[tuple[str, str, int]]) -> None:
    capacity = Capacity(memory_mib=2000, sandboxes=4, boots=2, queue=2)
    admission = Admission(capacity)
    for act, name, memory in history:
        if act == "ask":
            asked = admission.ask(name, memory)
            admission = asked if isinstance(asked, Admission) else admission
        else:
            admission = admission.booted(name) if act == "booted" else admission.left(name)
        assert admission.memory_mib <= capacity.memory_mib
        assert len(admission.held) <= capacity.sandboxes
        assert len(admission.booting) <= capacity.boots
        assert len(admission.waiting) <= capacity.queue
        assert admission.booting | set(admission.waiting) <= set(admission.held)
        assert not admission.booting & set(admission.waiting)
        assert not admission.waiting or len(admission.booting) == capacity.boots, "nobody waits beside a free place"
