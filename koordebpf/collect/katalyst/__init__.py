"""What Katalyst's plugins inside the agent decide from: memory, NUMA nodes."""
