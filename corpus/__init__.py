"""What a case is, what a backend promises, and the cases worth keeping."""
