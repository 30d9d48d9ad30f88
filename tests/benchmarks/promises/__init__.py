"""Worlds whose truth is known, real and synthetic, and measures of what Vouch promises in them."""
