"""What users call: collectives, messages, objects, models; and the way from a call to the engine or to other hosts."""
