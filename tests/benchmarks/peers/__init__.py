"""Other implementations of the same work, each in its own environment, created by `make.sh`."""
