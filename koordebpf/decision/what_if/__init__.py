"""What other settings would have done on recorded or live rounds: a node that is carried forward without its pods."""
