"""What other settings would have done: on recordings, and what an agent's shadow configurations came to."""
