"""Depth about device memory: the allocator's figures and giving memory back."""
