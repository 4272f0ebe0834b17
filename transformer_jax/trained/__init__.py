"""Trained models: open a run, save it as a model, find the model that a flag names.

Imports `training`, `weights` and the wings below them. The trainer of a task is passed in: tasks are above this wing.
"""
