"""`python -m bsmeta PROGRAM key=value ...` is the console command `bsmeta`."""

from bsmeta.cli import main

if __name__ == "__main__":
    main()
