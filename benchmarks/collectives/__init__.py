"""Speed of collectives.

session: contenders take turns. protocol: how one call is timed and checked.
"""
