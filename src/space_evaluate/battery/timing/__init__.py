"""Timing: policies that change, and what is under way then."""
