"""The attacks by name. Each only chooses parts, and states where it departs from its paper."""
