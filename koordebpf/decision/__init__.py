"""One round: its frame, the strategies that are asked, what is decided; and what would have been. Pure."""
