"""Commands that train policies and measure programs."""
