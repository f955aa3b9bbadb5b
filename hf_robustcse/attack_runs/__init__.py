"""The attack command without its command line: examples, victims trained on the spot, attacks that resume, pictures."""
