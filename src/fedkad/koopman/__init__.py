"""The mathematics of one device: numpy only, no files, no network, no state.

Read the modules in the order in which a sample meets them: `scaling` puts channels on one scale, `lifting` turns
windows into observables, `snapshots` gathers the statistics that training needs, `operator` holds the reduced
dynamics, and `stiefel` and `subspace` hold the geometry of the shared directions.
"""
