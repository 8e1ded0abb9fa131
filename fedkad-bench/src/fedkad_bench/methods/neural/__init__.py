"""The four neural baselines of the paper under FedAvg, in PyTorch: many small models train side by side."""
