"""The code interpreter of the template `code-interpreter-v1`: kernels that are warm, and a server for them on port 49999.

    zygote (imports everything, once) ──fork──► server: HTTP, contexts           ◄── executions, as lines of JSON
                                      ──fork──► a Jupyter kernel of Python or Bash, told what to do by the server over its sockets
    server ──────────────────────────spawn──► Node with `node/kernel.mjs`, lines of JSON over a pipe

Who executes here may do what the sandbox's user may: none of this is a wall, and input is checked so that mistakes have words.
"""
