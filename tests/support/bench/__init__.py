"""What several tests of the benchmark share: results, and pages."""
