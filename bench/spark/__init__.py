"""The sweep on Spark: a TaskManager inside each task of a barrier stage; results as a DataFrame."""
