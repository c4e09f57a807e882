"""The Vulkan backend: SPIR-V straight from kernel trees, and one recorded command buffer."""
