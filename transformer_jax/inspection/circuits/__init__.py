"""Models with weights written by hand, in which it is known which heads do the work."""
