"""The node and its pods as the strategy of block IO sees them."""
