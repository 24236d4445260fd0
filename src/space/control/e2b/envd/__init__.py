"""The in-sandbox API (E2B's daemon in the guest, on port 49983), answered on the host's side. `serve` is its door.

- `connect`: the Connect protocol; `encodings`: gzip; `people`: users and paths
- `processes` (with `roster`), `filesystem` (with `entries`, `watchers`): the two services; `transfers`: `/files`; `figures`: `/metrics`
- `memory`: what is remembered of sandboxes; `room`: what a request finds
"""
