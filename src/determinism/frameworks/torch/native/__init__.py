"""Recording below Python: an observer in C++, what builds it, and the recorder that it works for."""
