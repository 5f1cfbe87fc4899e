"""What Flower sends to server and nodes: the two apps, and the config and plan of both."""
