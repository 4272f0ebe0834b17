"""`python -m faults` runs the campaign; see `--help`."""

from faults.campaign import main

if __name__ == "__main__":
    main()
