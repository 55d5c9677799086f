"""Jobs that run outside the rounds: a folder each. What asks the API server has a thread of its own."""
