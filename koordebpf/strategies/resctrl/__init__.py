"""resctrl: each QoS class has its shares of L3 cache and memory bandwidth."""
