"""Draws cases (Hypothesis)."""
