"""A machine of its own in which Firecracker runs for real, on hosts without hardware virtualization too (docs/lab.md).

A level-1 guest under QEMU, whose emulated processor has AMD's virtualization; booted and saved once, restored for each use.
"""
