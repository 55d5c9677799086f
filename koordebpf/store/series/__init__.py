"""The series of usage, kept where the next agent finds them."""
