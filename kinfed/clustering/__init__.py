"""Clusters from distances, graphs and points: hierarchies, k-means, components, neighbours."""
