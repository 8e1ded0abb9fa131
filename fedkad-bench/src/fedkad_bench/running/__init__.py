"""Running the cells of a benchmark: what one process does, many processes, and a run that can be killed and goes on."""
