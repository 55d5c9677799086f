"""One page for one incident: its value, and the page as HTML."""
