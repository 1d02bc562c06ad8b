"""`python -m spanloop` is `spanloop`."""

from spanloop.cli import main

main()
