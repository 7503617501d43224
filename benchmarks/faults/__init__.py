"""The same faults over our backend, Gloo, and Gloo as torchft wraps it, side by side.

contenders   the process groups       trial   one fault in one call of live ranks
report       the results as Markdown
"""

__all__: list[str] = []
