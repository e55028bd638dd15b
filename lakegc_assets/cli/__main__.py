"""`python -m lakegc_assets.cli`."""

from lakegc_assets.cli.main import main

main()
