"""How processes find each other, under any launcher, and what they must agree on to form the group of all ranks."""
