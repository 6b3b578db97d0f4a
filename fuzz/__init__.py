"""Runs cases and campaigns (Ray, torch), and tells a person what was found."""
