"""Measurements that are no part of the package; a package, since others install one of this name."""
