"""PyTorch's adapter: records every op. Imported only after the program itself has imported `torch`."""
