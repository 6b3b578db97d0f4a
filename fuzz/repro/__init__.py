"""Turns a finding into files that run without us."""
