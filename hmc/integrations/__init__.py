"""Connectors of inference engines. Each is imported by its engine; ``import hmc`` imports none."""
