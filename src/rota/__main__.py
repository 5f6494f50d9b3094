"""`python -m rota` is the command `rota`, also where that is not on the path."""

from rota.cli import main

if __name__ == "__main__":
    main(prog_name="rota")
