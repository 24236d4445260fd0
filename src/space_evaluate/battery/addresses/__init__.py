"""Addresses: straight to what no name stands for, and names whose addresses must not be dialled."""
