"""Two models side by side in a browser: similarity, search, and texts under attack (`examples/demo.py`)."""
