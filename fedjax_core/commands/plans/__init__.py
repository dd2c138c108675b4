"""Parts of `fedjax-core plan`: compiling in other processes, analysing compiled programs, reporting."""
