"""Whole plans made faster: trees exchanged, edges re-parented, coordinate descent over groups."""
