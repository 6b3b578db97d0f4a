"""What a person reads: the console, and a finding's page."""
