"""Trained models: open a run, ship it as a model, find the model that a flag names.

Imports `training`, `weights` and the wings below them. The trainer of a task is handed in: tasks lie above this wing.
"""
