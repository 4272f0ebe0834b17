"""The fault campaign: thousands of accidents, hostile files and odd command lines, each with a verdict (`make faults`)."""
