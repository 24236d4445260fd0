"""Every limit of the API in one place, each with its reason. Sizes are bytes, times are seconds."""

from __future__ import annotations

from typing import Final

from space.model.sandbox import MAX_STDIN, MIB

# -- requests ------------------------------------------------------------------------------------------------------
# Names, values and the request line together. curl and the SDK send a few hundred bytes.
MAX_HEAD: Final = 32 * 1024
# A connection that has not sent a whole head after this is a slow-loris.
HEAD_SECONDS: Final = 15.0
# Between two requests on a connection: longer than the SDK's pool keeps one, so that the client closes first.
KEEP_ALIVE_SECONDS: Final = 75
# After an early answer the rest of a body is read and dropped for this long, so that the client sees the answer and no reset.
LINGER_SECONDS: Final = 10.0
# A create or a process without stdin: environment and arguments fit by far.
MAX_JSON: Final = MIB
# A process with stdin inside the JSON: 16 MiB in base64, and the object.
MAX_PROCESS_JSON: Final = MAX_STDIN // 3 * 4 + MAX_JSON
# Above this a body is decoded on a thread: the event loop would stand still for milliseconds.
DECODE_INLINE: Final = 256 * 1024
# The next piece of a body must come within this.
BODY_SECONDS: Final = 60.0
# An answer waits, and the client takes nothing of it (and sends nothing, as some do before they read) for this long.
STALL_SECONDS: Final = 60.0
# stdin that the guest has not taken yet is kept in memory up to this, then in an unlinked file.
STDIN_IN_MEMORY: Final = 256 * 1024
# A message of a WebSocket's client. Larger ones are closed with 1009.
MAX_MESSAGE: Final = MIB
# A message may come in many fragments, also empty ones: each is an object here.
MAX_FRAGMENTS: Final = 4096
# A WebSocket is pinged this often, and cut when then nothing is heard or taken for as long again.
PING_SECONDS: Final = 20.0
# The other side's CLOSE must come within this after ours; then the connection goes.
CLOSE_SECONDS: Final = 5.0

# After an answer from below the application.
REFUSED_SECONDS: Final = 2.0

# -- concurrency: the session to the node carries 1,024 streams -------------------------------------------------------
MAX_CONNECTIONS: Final = 2048
MAX_REQUESTS: Final = 768
MAX_REQUESTS_PER_TENANT: Final = 512
# Of those, requests that may wait for one sandbox's guest: a guest that answers nothing leaves a quarter of its tenant's room.
MAX_REQUESTS_PER_SANDBOX: Final = 384
# Beyond those, for requests that end things or look at what control and the node know: nothing that hangs keeps them out.
RESERVED_REQUESTS: Final = 128
RESERVED_REQUESTS_PER_TENANT: Final = 64

# -- ports: a session to the node of their own, which carries 1,024 streams as well -----------------------------------------
PORT_CONNECTIONS: Final = 1000
# Of those, to one sandbox: its guest's session has 1,024 streams for everything.
PORT_CONNECTIONS_PER_SANDBOX: Final = 256
# With those that have not said yet what they want, and clients of the API that come through the ingress.
PORT_CONNECTIONS_WITH_API: Final = 4096
# Clients of the API's address that are handed to the ingress.
HANDED_OVER: Final = 1024

# -- keys ------------------------------------------------------------------------------------------------------------
# Wrong keys from one address before it gets 429, and how fast the allowance comes back.
WRONG_KEYS: Final = 10
WRONG_KEYS_PER_SECOND: Final = 0.2
MAX_PEERS: Final = 4096

# -- sandboxes -------------------------------------------------------------------------------------------------------
CREATE_SECONDS: Final = 300.0
# A create whose session to the node was lost waits so long for the next one before its caller is told.
NODE_BACK_SECONDS: Final = 30.0
# A server that stops and ends its sandboxes gives them so long.
END_ALL_SECONDS: Final = 40.0
DELETE_SECONDS: Final = 30.0
CALL_SECONDS: Final = 30.0
PORT_SECONDS: Final = 150.0  # until a port answers: what its template starts may have to become ready first
RETENTION_SECONDS: Final = 3600
# Ended sandboxes that are kept for a tenant, the latest: a client that fails in a loop must not fill the store.
ENDED_PER_TENANT: Final = 1000
IDEMPOTENCY_SECONDS: Final = 86_400
HEARTBEAT_SECONDS: Final = 5.0
# The guest neither takes nor gives a byte of a tree for this long.
TREE_STALL_SECONDS: Final = 120.0
# A change of files in the guest, also of a whole tree.
FILE_SECONDS: Final = 120.0
# From a watch's request until the guest watches, also all of a tree.
WATCH_SECONDS: Final = 30.0
# From a suspend, a stop, a wake or a rollback until it is done: memory goes to the disk or comes from it, in a queue of others.
LIFE_SECONDS: Final = 300.0
# Calls to one sandbox that wait until it has woken.
HELD_CALLS: Final = 64
CHECKPOINTS_PER_SANDBOX: Final = 32
# Children of one fork.
CHILDREN: Final = 16
# Sandboxes that are gone and whose tenant is remembered without asking the store.
OWNERS: Final = 10_000
LIST_DEFAULT: Final = 50
LIST_MAX: Final = 200

# -- policies ----------------------------------------------------------------------------------------------------------
# A policy's document is at most 8 MiB; JSON with blanks and escapes may be longer than what it says.
MAX_SECRET_JSON = 65_536
MAX_GRANT_JSON = 20_480
MAX_POLICY_JSON: Final = 12 * MIB
POLICIES_PER_TENANT: Final = 200
# What a tenant's stored policies and its sandboxes' own ones say, together.
POLICY_BYTES_PER_TENANT: Final = 64 * MIB
# Mistakes of a policy that are told, and warnings: a policy of 20,000 rules may have more than anybody reads.
POLICY_NOTES: Final = 50
# Policies that are read at a time, each on a thread: one of 20,000 rules takes half a second of a processor.
POLICY_READING: Final = 2
# Sandboxes whose policy the node is told at a time.
POLICY_TELLING: Final = 16
POLICY_CALL_SECONDS: Final = 10.0
# A policy that the node could not be made to decide by within this is replaced by none: nothing leaves until it can be.
POLICY_CUT_SECONDS: Final = 15.0
# The answer to a change waits so long for the node.
POLICY_WAIT_SECONDS: Final = 20.0
POLICY_LONGEST_PAUSE: Final = 5.0
# Texts and documents that are kept in memory.
POLICY_CACHE: Final = 32 * MIB
# Requests of a sandbox that wait and are known here, and events of them in a minute.
ASKS_PER_SANDBOX: Final = 64
ASK_EVENTS_PER_MINUTE: Final = 60

# -- events, webhooks, audit -------------------------------------------------------------------------------------------
# One read of the log: the reading thread serves everybody.
EVENTS_PAGE: Final = 500
EVENTS_DEFAULT: Final = 1000
EVENTS_MAX: Final = 100_000
# A tenant's log is looked at after so many new events, and every log after so long: a pruning takes few rows then.
EVENTS_PRUNE_EVERY: Final = 1000
SWEEP_SECONDS: Final = 3600.0
# A delivery: resolve, connect, send, status. A receiver that does more than take it down answers first.
WEBHOOK_SECONDS: Final = 10.0
WEBHOOK_FIRST_PAUSE: Final = 1.0
WEBHOOK_LONGEST_PAUSE: Final = 300.0
WEBHOOK_PAGE: Final = 100
# Each is a task and at most one connection.
WEBHOOKS_PER_TENANT: Final = 16
WEBHOOKS: Final = 512
# Audit records wait so long, or until there are so many: what a crash loses at most.
AUDIT_SECONDS: Final = 1.0
AUDIT_BATCH: Final = 256
AUDIT_DEFAULT: Final = 100
AUDIT_MAX: Final = 1000
