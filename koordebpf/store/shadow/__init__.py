"""What shadow configurations came to, on disk."""
