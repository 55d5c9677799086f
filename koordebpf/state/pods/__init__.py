"""Facts of a Pod object that no measurement changes. Pure."""
