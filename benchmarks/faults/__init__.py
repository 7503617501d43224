"""The same faults over our backend, Gloo, and Gloo as torchft wraps it; and over Gloo, watched and not."""
