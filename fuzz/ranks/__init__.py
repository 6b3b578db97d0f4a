"""Ranks: one light Ray actor each, supervising a forked child that holds the process group."""
