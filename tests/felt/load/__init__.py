"""The applications, their clients and the hogs beside them."""
