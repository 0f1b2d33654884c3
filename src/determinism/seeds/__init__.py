"""Seeds as streams: one master seed gives every place that draws random numbers a stream of its own."""
