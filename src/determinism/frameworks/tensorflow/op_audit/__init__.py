"""The audit of TensorFlow's ops: cases that provoke, and counting what comes out."""
