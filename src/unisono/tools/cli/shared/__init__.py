"""Helpers of several commands."""
