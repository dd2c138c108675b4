"""Other ways to do the same work, each in its own environment: `make.sh` makes them."""
