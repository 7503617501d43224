"""Shared memory: its layout, which rank has which part of it, and what ranks write there for each other."""
