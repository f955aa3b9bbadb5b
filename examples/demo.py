#!/usr/bin/env python
"""Two sentence encoders side by side in a browser: similarity, search, and texts under attack.

    python examples/demo.py
    python examples/demo.py --model out --compare_with sentence-transformers/all-MiniLM-L6-v2 --corpus sentences.txt

Needs `pip install hf_robustcse[demo]`, and no network.
"""

from hf_robustcse.demo.run import main

if __name__ == "__main__":
    main()
