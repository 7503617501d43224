"""Shared memory: how it is laid out, who has which part of it, and what ranks write there for each other."""
