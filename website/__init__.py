"""The documentation site: what is generated when `make docs` builds it."""
