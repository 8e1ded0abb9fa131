"""The two ends of a fleet as Flower looks for them; all of their code is in the package `fedkad`."""
