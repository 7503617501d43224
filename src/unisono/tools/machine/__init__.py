"""What is right with the machine of the ranks, and what to change. One look at the machine, then checks judge it."""
