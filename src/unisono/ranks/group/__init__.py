"""Groups: `Group` itself, the default group, `init`, sub-groups in the memory of the world, shared tensors."""
