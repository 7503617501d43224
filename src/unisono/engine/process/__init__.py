"""Processes of this host: whether they live, what they do, their Python stacks, and what this one may ask of them."""
