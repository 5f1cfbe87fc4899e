"""What Flower sends to server and nodes: the two apps, and what both of them know."""
