"""Rules of onnxscript in our engine, and our laws as rules of onnxscript."""
