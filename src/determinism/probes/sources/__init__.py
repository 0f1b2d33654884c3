"""What programs take from outside, one file per family: which functions, what is noted, and what the fixed value is."""
