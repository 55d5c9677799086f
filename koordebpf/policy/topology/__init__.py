"""What NodeResourceTopology says of a node. Pure."""
