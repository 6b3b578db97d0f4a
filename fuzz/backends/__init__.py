"""One file a library under test."""
