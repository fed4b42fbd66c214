"""Reports: a command's result as one self-contained HTML page, for screen and print."""
