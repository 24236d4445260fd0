"""The only process with root's rights over a running instance: about ten typed operations, and nothing else.

server.py is the composition root; records.py the boundary; slots.py, sandboxes.py, vmm.py and jail.py act; sweep.py removes
everything of an instance, whether or not anybody else of it lives.
"""
