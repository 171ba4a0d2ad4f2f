"""The catalogue of metrics, the samples of each, and their export to Prometheus."""
