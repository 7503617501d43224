"""What is right with the machine that ranks run on, and what to change. It is looked at once; then checks judge."""
