"""The two ends of a fleet in the form that Flower expects; all of their code is in the package `fedkad`."""
