"""Activations of models: seen, changed and explained."""
