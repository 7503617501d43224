"""Processes of this host: whether they live, how they answer with their Python stacks, and whose code runs in them."""
