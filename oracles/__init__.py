"""Judges what happened on the ranks (numpy, torch)."""
