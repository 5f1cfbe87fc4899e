"""Drivers: one file for each contender, run as a process of its own by whatever interpreter has its packages.

They may import nothing of kinfed but `protocol`, for kinfed is not installed beside the other simulators.
"""
