"""What programs take from outside, one file per family: the functions, what is noted, and the fixed value."""
