"""`python -m r2et` is the command r2et."""

from r2et.cli import main

if __name__ == "__main__":
    main()
