"""Deadlines and limits of the node, each with its reason. Seconds unless said."""

from __future__ import annotations

# A boot under software emulation takes 3 to 9 s on a quiet machine; four at once on two busy cores came near 40.
BOOT = 60.0
# From HELLO_ACK to a configured guest: it reseeds, sets the clock, and grows the root file system (slow for large disks, emulated).
CONFIGURE = 60.0
# Boots take turns: with a full queue the last one waits for several boots.
QUEUE_WAIT = 300.0
# Boots that may wait: beyond these a client is better told now than after minutes.
QUEUE_LENGTH = 64
# rootd's operations take milliseconds; a reflink on a loaded disk and a namespace under contention have taken a second.
ROOTD_STEP = 30.0
# Firecracker's API: a call in milliseconds; nested in emulation up to 0.1 s. Its start: the jailer's, 1 to 1.5 s there.
API = 15.0
FIRECRACKER_START = 30.0

# QMP answers in under a millisecond; a VMM starved of CPU by its neighbours has taken seconds.
QMP = 15.0
# A VMM that goes on from a snapshot has loaded its state (70 KiB) in milliseconds.
LOAD = 20.0
# A snapshot's parts: the disk's dirty pages go to the disk while the VM runs; it stands still while memory is copied (some 50 ms for
# 64 MiB); a durable one is read once more for its digests and goes to the disk.
SNAPSHOT_READY = 60.0
SNAPSHOT_COPY = 60.0
SNAPSHOT_DONE = 600.0
# A restored guest reseeds, takes its names and runs the template's hooks, which it gives 20 s.
IMPRINT = 40.0
# Before its memory is stored a guest writes its files; one that is stuck in that (a frozen file system) is stored as it is.
SYNC = 20.0
# A guest that is stopped ends its processes (10 s), writes its files and turns itself off.
HALT = 30.0
# A guest that stands still because the host's disk is full goes on once there is room for more than a write or two; looked at so often.
# QEMU says within milliseconds that it did not help.
STALL_ROOM = 32 << 20
STALL_PAUSE = 2.0
STALL_LOOK = 0.2
# Undoing waits until it is done, however long; this only names a host that takes so long.
UNDO = 3600.0
# Clones that are made ahead of a template: as many as were asked for within the last minute. A minute after the last they go.
AHEAD_SECONDS = 60.0
# After a create: who makes one makes another, or runs a first command, and is not to share the processor with what nobody waits for.
AHEAD_QUIET = 2.0
# A node that has just been started and that nobody asks for anything makes its usual template warm; one that boots others waits with it.
WARM_AFTER = 5.0
# A SIGKILLed VMM is gone in milliseconds, unless the kernel writes out its memory or the disk hangs.
DEATH = 20.0
# noop, metrics: an emulated guest at 100 % CPU answers within a second.
ANSWER = 30.0
# Again for the clock, of a guest that runs already (adopted, or resumed): control waits 30 s for a resume, of which QMP may take 15.
RECONFIGURE = 10.0
# A new channel to a guest that runs already, and its processes attached again. Nobody else waits for it: see below.
RECONNECT = 60.0
# Before a snapshot that ends its pipes a guest reads what it was sent: a round trip, unless it is starved.
SETTLE = 5.0
# A node that starts waits so long for its adoptions, which take milliseconds each: one guest's silence is not everybody's downtime.
ADOPTIONS = 3.0
# When the channel breaks, the VMM's end may be a moment behind: then its reason is the true one.
DEATH_AFTER_BREAK = 2.0
# Callers of delete wait that long; the deletion itself goes on until it is done.
DELETE_ANSWER = 30.0
# A release that failed (rootd away, kernel busy) is repeated: the host must not keep anything.
RELEASE_PAUSE_FIRST = 0.02
RELEASE_PAUSE_LAST = 2.0
# The first guest on /dev/kvm must say hello within this, else software emulation is used (an emulated /dev/kvm never gets there).
KVM_PROBE = 5.0
# Slots that are kept ready while there are sandboxes: for two creates at once, on top of what a machine of two cores boots at a time.
READY_SLOTS = 2
# Making one takes a tenth of a second of a processor, which the first command of the sandbox that took the last one needs more.
READY_QUIET = 0.5
# After the last sandbox they stay a moment, for those who make one after the other; an idle machine then keeps nothing.
READY_LINGER = 2.0

# Policy before the guest runs: milliseconds, but a service that is being started again is waited for.
EGRESS = 15.0
# Control waits for a policy to hold; where a service is away, that goes on without it.
SET_POLICY = 10.0
# A service of egress that is away, or refuses, is tried again; one that lived this long begins with the first pause again.
SERVICE_PAUSE_FIRST = 0.02
SERVICE_PAUSE_LAST = 2.0
SERVICE_STEADY = 5.0

SPARE_POLICIES = 64 << 20  # bytes of policies that no sandbox has
KNOWN_POLICIES = 10_000  # digests of which the node remembers whether they allow addresses
DIALER_POLICIES = 512  # that the dialer was given, before it is to drop those that nobody has
PLACEHOLDERS = 2.0  # for the broker to say what an environment gets
ALARMS = 64  # kinds of them, by grant, that a sandbox's level tells
ASKS = 64  # requests of a sandbox that wait for a person; what comes beyond is refused

SERIAL_RING = 64 * 1024  # bytes of a guest's console that are kept
SERIAL_RATE = 256 * 1024  # bytes a second that are read of it; a guest that floods its console waits for itself
QMP_LINE = 64 * 1024  # bytes; QEMU's longest line in our use (the greeting) is below 1 KiB
QMP_RATE = 100  # lines a second that are looked at; a VMM that floods its monitor waits for itself

PROCESSES = 700  # that run at once in a sandbox: each holds a stream of the guest's session, which has 1,024
ENDED = 1000  # ended processes of a sandbox that are kept
FORGOTTEN = 1000  # ids of processes of a sandbox that were forgotten: a start that was delayed on its way must not begin them after all
UNWRITTEN = 32 * 1024  # bytes of output of an attached run that are in memory alone: most commands write less
LAZY_BYTES = 1 << 20  # of a sandbox's short runs that have ended before their clients, and are in memory alone
MIN_SPOOL = 64 * 1024  # bytes; the least that a process may ask for: one piece of output must fit
# A spool that the disk does not take is tried again: the process waits meanwhile.
DISK_PAUSE_FIRST = 0.1
DISK_PAUSE_LAST = 5.0
RETIRED_BYTES = 2 << 30  # spools of all sandboxes that are gone; the oldest go first, so that many short lives do not fill the disk
RETIRED_PROCESSES = 20_000  # of all sandboxes that are gone: each has some 4 KiB of memory
HISTORY = 480  # samples of a sandbox's figures: four hours of one each half minute
