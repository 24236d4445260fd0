"""Exhaustion: whatever costs the gateway more than the guest."""
