"""Set-up: what turns a fresh Debian 12 machine into one that boots sandboxes.

Standard library only: it runs before the dependencies are there.
"""
