"""Frozen values that every other part speaks: identifiers, sandboxes, errors, the HTTP stream's frames.

Standard library only, so that the SDK and rootd can import it.
"""
