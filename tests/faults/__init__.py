"""The fault campaign: thousands of accidents, hostile files and wrong calls, each with a verdict (`make faults`)."""
