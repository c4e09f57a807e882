"""An extension of Model Explorer: ``model-explorer --extensions=tflgpu.tools.model_explorer``. It
loads `main`; nothing else here needs Model Explorer."""
