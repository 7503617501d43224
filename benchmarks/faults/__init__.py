"""The same faults over our backend, Gloo, and Gloo as torchft wraps it, side by side."""
