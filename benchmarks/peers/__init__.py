"""Drivers of other simulators for `kinfed bench`, one file each, run by the interpreter that has its packages.

They may import nothing of kinfed but `kinfed.bench.drivers`: kinfed is not installed beside the other simulators.
"""
