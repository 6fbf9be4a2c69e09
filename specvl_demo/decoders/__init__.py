"""The decoder runtime: KV cache, cached sequences, backends and timing. Knows no pictures and no
methods.
"""
