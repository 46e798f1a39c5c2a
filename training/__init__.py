"""Training of the models that ship with the package; no part of the package."""
