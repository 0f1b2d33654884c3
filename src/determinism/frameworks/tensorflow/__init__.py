"""The adapter for TensorFlow, with Keras."""
