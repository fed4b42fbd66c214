"""The simulated world (SimPy): devices, links, and sources of acceptance."""
