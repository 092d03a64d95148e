"""What every part of the package builds on, and what builds on none of them."""
