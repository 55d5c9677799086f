"""What Katalyst's eviction plugins answer, and what is measured for those inside. Values only."""
