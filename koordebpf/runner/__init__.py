"""What a strategy or a job is opened with, and what an agent asks of it in each round."""
