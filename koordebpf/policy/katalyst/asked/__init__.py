"""What plugins ask for: requests, the queue of what is sent, killers, and records of what was evicted before."""
