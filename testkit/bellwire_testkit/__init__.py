"""The pytest plugin and its harness: relay and consumer driven in one process, on a clock tests control."""
