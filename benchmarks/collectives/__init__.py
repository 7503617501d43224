"""Speed of collectives, and the goals that unisono has set itself.

session      contenders take turns           report    figures; Markdown, time against size
protocol     how one call is timed           goals     goals against figures
extras       start-up
"""
