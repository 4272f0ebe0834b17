"""The fault campaign: killed trainings and hostile files, each with a verdict (`make faults`)."""
