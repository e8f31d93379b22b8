"""Commands that speak Evergreen, one file each."""
