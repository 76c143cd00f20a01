"""The demonstration: an appliance and four PyTorch workers on one machine. See run.py."""
