"""Models whose weights were written by hand, so that it is known which of their heads do the work."""
