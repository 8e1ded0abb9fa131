"""The mathematics of one device: numpy only, no files, no network, no state.

Read the modules in the order of a sample's way: `scaling` puts channels on one scale, `lifting` turns windows
into observables, `snapshots` gathers what training needs of them, `operator` holds the reduced dynamics, and
`stiefel` and `subspace` the geometry of the shared directions.
"""
