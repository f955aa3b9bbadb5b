"""From a trained checkpoint to a service: ONNX export, and encoding files that do not fit into memory."""
