"""What stands behind the page: queue, worker processes, ZeroGPU, cluster."""
