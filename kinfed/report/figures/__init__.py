"""Pictures for notebooks and papers: each function gives back a matplotlib figure and the numbers in it."""
