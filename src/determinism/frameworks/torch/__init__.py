"""PyTorch: records every op through a dispatch mode. Imported only once the program itself has imported `torch`."""
