"""What each picture shows, as numbers: one file a picture; pages and figures draw the same."""
