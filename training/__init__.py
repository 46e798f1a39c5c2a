"""Training of the models that ship with the package or its tests; no part of the package."""
