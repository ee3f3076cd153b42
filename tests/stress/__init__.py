"""Long and hard: `make test-stress`. Every run takes other random moments; the seed is in the failure."""
