"""Seeded faults over a correct backend, by name."""
