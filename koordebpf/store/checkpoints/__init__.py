"""Models of prediction, kept over restarts."""
