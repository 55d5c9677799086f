"""Text for a terminal: plans, explanations, tables. 80 columns."""
