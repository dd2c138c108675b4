"""What `fedjax-core plan` is made of: compiling in other processes, reading what was compiled, and telling it."""
