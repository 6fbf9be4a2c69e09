"""What is behind the page: queue, worker processes, ZeroGPU, cluster."""
