"""Recognizes other file types, for the error message about a file that is no `.tflite` model."""

from __future__ import annotations

#: How LiteRT says it.
NOT_FLAT = "The model is not a valid Flatbuffer buffer"
_CONVERT = "convert it with TensorFlow's TFLiteConverter (tf.lite) or ai-edge-torch, and load that"


def not_tflite(head: bytes) -> str | None:
    """Why these first bytes of a file are no TFLite model, and what to do; None if they may be one.

    Args:
        head: at least the first 64 bytes, or the whole of a shorter file.
    """
    if head[4:8] == b"TFL3":
        return None
    return f"{NOT_FLAT}: not a TFLite model: {_looks_like(head)}"


def _looks_like(head: bytes) -> str:
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return (
            "it looks like a zip archive (a MediaPipe .task bundle, a .keras or a PyTorch file); "
            f"unpack it, or {_CONVERT}"
        )
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return f"it looks like an HDF5 file (a Keras .h5 model); {_CONVERT}"
    if head[:2] == b"\x1f\x8b":
        return "it looks like a gzip archive; unpack it and load the .tflite file inside"
    if head[:8] == b"LITERTLM":
        return "it looks like a LiteRT-LM bundle, which holds TFLite models; unpack it first"
    if head.startswith(b"tflgpu saved "):
        return (
            "it is a compiled model, which goes with its .tflite file: load that, with "
            "GpuDelegate(saved=...) naming this one"
        )
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself; run `git lfs pull`"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it looks like a web page, probably an error page saved in its place; fetch it again"
    if head[4:8] == b"ORTM":
        return f"it looks like an ONNX Runtime .ort model; {_CONVERT}"
    if head[4:6] == b"TF" and head[6:8].isalnum():
        return (
            f"its flatbuffer identifier is {head[4:8].decode('ascii')}, not TFL3; "
            "convert the model again with a current converter"
        )
    if head[:3] == b"\x08\x01\x12":
        return f"it looks like a TensorFlow SavedModel (saved_model.pb); {_CONVERT}"
    if head[:1] == b"\x08" and head[2:3] in (b"\x12", b"\x1a", b"\x3a", b"\x42"):
        return f"it looks like an ONNX model; {_CONVERT}"
    if head[:1] == b"\x0a" and b"\x12" in head[:64]:
        return f"it looks like a TensorFlow frozen graph (.pb); {_CONVERT}"
    return (
        f"Model provided has model identifier {head[4:8].decode('latin-1')!r}, should be 'TFL3': "
        "its bytes 4 to 8 are not the identifier TFL3; check that the path is the right one"
    )
