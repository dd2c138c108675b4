"""`python -m fedjax_core`: the same as the installed command `fedjax-core`."""

from fedjax_core.commands.main import main

if __name__ == "__main__":
    main()
