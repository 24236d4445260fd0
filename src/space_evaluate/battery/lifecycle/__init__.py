"""Lifecycle: pauses, forks, restores, and what an earlier life left."""
