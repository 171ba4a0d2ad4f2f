"""The JobManager's web page and REST interface; read-only unless started with `--web-submit`."""
