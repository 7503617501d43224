"""Speed of collectives, and the goals that unisono has set itself.

session      contenders take turns           protocol    how one call is timed and checked
figures      percentiles, bandwidths         goals       goals against figures
extras       proofs, start-up                report      Markdown, JSON lines, time against size
"""
