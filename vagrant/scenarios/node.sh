# shellcheck shell=sh
# What every script that runs in a pod counts on: NODE_MIB, the size of its node, and LOADS, the programs that eat. The
# runner gives both; elsewhere the machine is the node, and the programs are those of the checkout.
: "${NODE_MIB:=$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)}"
: "${LOADS:=$(dirname "$0")/../../../tests/workloads/build}"
# The most that the programs take, whatever the machine has.
[ "$NODE_MIB" -le 6144 ] || NODE_MIB=6144
