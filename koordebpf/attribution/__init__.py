"""Who a cgroup belongs to; births and deaths; what is unknown stays visible. Pure."""
