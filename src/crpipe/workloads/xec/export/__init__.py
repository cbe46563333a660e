"""What an export of a trained model adds: ONNX graphs with raw inputs."""
