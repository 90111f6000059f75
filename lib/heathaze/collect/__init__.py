"""THE PRIVATE SIDE: the only code that sees people's data, and the only randomness that protects them."""
