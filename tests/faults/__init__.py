"""The fault campaign: accidents, hostile files and odd command lines, each with a verdict (`make faults`)."""
