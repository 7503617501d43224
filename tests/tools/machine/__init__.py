"""Checks of a machine."""
