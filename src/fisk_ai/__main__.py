"""`python -m fisk_ai`."""

from fisk_ai.cli.main import main

if __name__ == "__main__":
    main()
