"""The WebGPU backend: kernels as WGSL, run through wgpu-py on Vulkan, Metal or Direct3D 12."""
