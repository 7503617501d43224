"""How processes find each other, whoever started them, and what they must agree on to form the group of all ranks."""
