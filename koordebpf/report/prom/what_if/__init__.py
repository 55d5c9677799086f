"""Metrics of other configurations than the acting one."""
