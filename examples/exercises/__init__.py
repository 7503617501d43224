"""Twelve exercises: write collectives with send and recv. `pytest examples/exercises` checks what is in answers.py."""
