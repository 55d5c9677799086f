"""Files of the whole node that hold many values: their formats. Refuses: reading and writing them."""
