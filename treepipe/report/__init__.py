"""Reports: what a command found as one HTML page that needs nothing else, to read and to print."""
